"""Drives clients/python for the tests of this folder:

    python3 driver.py call '{"url": …}'   makes one call, as rules_test.go describes it
    python3 driver.py herd URL N          has N clients make one each
"""

import io
import itertools
import json
import pathlib
import sys
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "clients" / "python"))
sys.dont_write_bytecode = True
import shield_client  # noqa: E402


def call(url, method, body="", stream=False, cookie="", attempts=None, total=None, jar=False, **_):
    bounds = {}
    if attempts:
        bounds["attempts"] = attempts
    if total:
        bounds["total"] = total / 1000
    opener = shield_client.build_opener(*[urllib.request.HTTPCookieProcessor()] * jar, **bounds)
    data = None
    if body:
        data = io.BytesIO(body.encode()) if stream else body.encode()
    request = urllib.request.Request(url, data, {"Cookie": cookie} if cookie else {}, method=method)
    try:
        with opener.open(request, timeout=20) as response:
            return {"returned": int(time.time() * 1000), "status": response.status, "body": response.read().decode()}
    except urllib.error.HTTPError as rejection:
        return {"returned": int(time.time() * 1000), "status": rejection.code, "body": rejection.read().decode()}


class Counter(urllib.request.BaseHandler):
    def __init__(self):
        self.count = itertools.count()

    def http_request(self, request):
        next(self.count)
        return request


def herd(url, n):
    counter, served = Counter(), []
    opener = shield_client.build_opener(counter)

    def client(i):
        with opener.open(urllib.request.Request(url, headers={"X-Client": f"py-{i}"}), timeout=60) as response:
            response.read()
            served.append(i)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(n)]
    began = int(time.time() * 1000)
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return {"served": len(served), "requests": next(counter.count), "began": began}


what, *args = sys.argv[1:]
print(json.dumps(call(**json.loads(args[0])) if what == "call" else herd(args[0], int(args[1]))))
