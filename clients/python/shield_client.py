"""Retries requests when the server says so.

A server behind shield rejects clients with an appointment of their own, and this client returns on
time, to the millisecond. It works with Python 3.9 or later, without other packages. For the rules it
follows, see docs/guides/write-a-client.md.

    import shield_client
    opener = shield_client.build_opener(total=10)
    response = opener.open("https://example.com/")

Or use it as one of several handlers:

    opener = urllib.request.build_opener(shield_client.Appointments(), ...)
"""

import datetime
import email.utils
import time
import urllib.request

TICKET = "shield_retry"  # the cookie with a signed appointment


class Appointments(urllib.request.BaseHandler):
    """Repeats a request when a 429 or 503 says when to return.

    It gives up, and the opener raises the rejection as a urllib.error.HTTPError with its body
    unread, if the server says "never" or gives no time, if the body of the request can't be sent
    again because it isn't bytes, or if the time exceeds one of the limits:

    attempts: the most requests for one, with the first
    total: seconds from the first request to the last; the timeout of open() is for one request
    """

    def __init__(self, attempts=5, total=120.0):
        self.attempts, self.total = attempts, total

    def http_request(self, request):
        if not isinstance(request, _Return):
            request.attempt, request.end = 1, time.monotonic() + self.total
        request.add_unredirected_header("Shield-Retry", "yes")
        return request

    https_request = http_request

    def http_error_429(self, request, response, code, message, headers):
        now = time.monotonic()
        wait = appointment(headers)
        if wait is None or request.attempt >= self.attempts or now + wait > request.end:
            return None  # the opener raises it
        if request.data is not None and not isinstance(request.data, (bytes, bytearray)):
            return None
        again = self._copy(request, headers)
        again.attempt, again.end = request.attempt + 1, request.end
        response.close()
        time.sleep(max(0, now + wait - time.monotonic()))
        return self.parent.open(again, timeout=request.timeout)

    http_error_503 = http_error_429

    def _copy(self, request, headers):
        """Returns the request that comes back, with the ticket of the rejection if it has one."""
        again = _Return(
            request.full_url, request.data, request.headers, request.origin_req_host,
            request.unverifiable, request.get_method())
        again.unredirected_hdrs.update(request.unredirected_hdrs)
        has_jar = any(isinstance(h, urllib.request.HTTPCookieProcessor) for h in self.parent.handlers)
        if has_jar and "Cookie" not in request.headers:
            again.unredirected_hdrs.pop("Cookie", None)  # its jar has the ticket, and writes the header anew
            return again
        for field in headers.get_all("Set-Cookie", ()):
            name, _, value = field.partition(";")[0].strip().partition("=")
            if name == TICKET:
                others = again.get_header("Cookie", "").split(";")
                kept = [c.strip() for c in others if c.strip() and not c.strip().startswith(TICKET + "=")]
                again.headers.pop("Cookie", None)
                again.add_unredirected_header("Cookie", "; ".join(kept + [TICKET + "=" + value]))
        return again


class _Return(urllib.request.Request):
    """A request that has been rejected, and comes back."""


def appointment(headers):
    """Returns how many seconds a rejection asks its client to wait; None if it does not say."""
    if headers.get("X-Should-Retry", "").lower() == "false":
        return None
    milliseconds, after = headers.get("Retry-After-Ms", ""), headers.get("Retry-After", "")
    if is_number(milliseconds):
        return int(milliseconds) / 1000
    if is_number(after):
        return float(after)
    at = date(after)
    if at is None:
        return None
    # The date is by the server's clock. So is Date, and it is rounded down: nobody comes early.
    sent = date(headers.get("Date", ""))
    return max(0.0, at - (time.time() if sent is None else sent))


def is_number(text):
    return text.isascii() and text.isdigit()


def date(text):
    """Returns an HTTP date in seconds since 1970; None if it is none."""
    try:
        return email.utils.parsedate_to_datetime(text).replace(tzinfo=datetime.timezone.utc).timestamp()
    except (TypeError, ValueError, IndexError):
        return None


def build_opener(*handlers, attempts=5, total=120.0):
    """As urllib.request.build_opener, with a handler that keeps appointments."""
    return urllib.request.build_opener(Appointments(attempts, total), *handlers)
