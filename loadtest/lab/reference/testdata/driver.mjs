// Drives clients/javascript for the tests of this folder:
//   node driver.mjs call '{"url": …}'   makes one call, as rules_test.go describes it
//   node driver.mjs herd URL N          has N clients make one each
import { keepAppointments } from '../../../../clients/javascript/shield-fetch.mjs';

const [, , what, ...args] = process.argv;

async function call({ url, method, body, stream, request, cookie, attempts, total, abort }) {
  const init = { method, attempts, total, headers: cookie ? { Cookie: cookie } : {} };
  if (body) {
    init.body = stream ? new Blob([body]).stream() : body;
    init.duplex = 'half';
  }
  if (abort) {
    const aborter = new AbortController();
    setTimeout(() => aborter.abort(), abort);
    init.signal = aborter.signal;
  }
  try {
    const response = await keepAppointments(fetch)(...(request ? [new Request(url, init)] : [url, init]));
    const returned = Date.now();
    return { returned, status: response.status, body: await response.text() };
  } catch (error) {
    return { returned: Date.now(), error: String(error) };
  }
}

async function herd(url, n) {
  const out = { served: 0, requests: 0, began: Date.now() };
  const patientFetch = keepAppointments((...args) => (out.requests++, fetch(...args)));
  const client = async (i) => {
    const response = await patientFetch(url, { headers: { 'X-Client': `js-${i}` } });
    await response.text();
    out.served += response.ok ? 1 : 0;
  };
  const all = [];
  for (let i = 0; i < n; i++) {
    all.push(client(i));
    if (i % 5 === 0) {
      await new Promise(setImmediate); // otherwise the first would read their responses when the last have begun
    }
  }
  await Promise.all(all);
  return out;
}

console.log(JSON.stringify(what === 'call' ? await call(JSON.parse(args[0])) : await herd(args[0], Number(args[1]))));
