// Retries requests when the server says so. A server behind shield rejects clients with an appointment
// of their own, and this client returns on time, to the millisecond. It works in browsers, Node.js 18
// or later, and anything else with fetch. For the rules it follows, see docs/guides/write-a-client.md.
//
//   import { keepAppointments } from './shield-fetch.mjs';
//   const patientFetch = keepAppointments(fetch);
//   const response = await patientFetch('https://example.com/', { total: 10_000 });

const TICKET = 'shield_retry'; // the cookie with a signed appointment
const LONGEST_TIMER = 2 ** 31 - 1; // setTimeout fires at once for more

/**
 * Returns a function like fetch that repeats a request when a 429 or 503 says when to return.
 * It gives up, returning the rejection with its body unread, if the server says "never" or gives no
 * time, if the body can't be sent again (a stream, or the body of a Request), or if a limit is reached.
 * init.attempts and init.total set the limits of a single call. An AbortSignal ends a wait, but doesn't
 * say when it will fire, so use total for a deadline.
 *
 * @param {typeof fetch} [send] sends requests
 * @param {{attempts?: number, total?: number}} [bounds] attempts: the most requests for one, with the
 *   first, 5 if not given; total: milliseconds from the first to the last, 120,000 if not given
 */
export function keepAppointments(send = globalThis.fetch, bounds = {}) {
  return async (input, options = {}) => {
    const { attempts = bounds.attempts ?? 5, total = bounds.total ?? 120_000, ...init } = options;
    const request = typeof Request === 'function' && input instanceof Request ? input : undefined;
    const signal = init.signal ?? request?.signal;
    const end = performance.now() + total;
    const headers = new Headers(init.headers ?? request?.headers);
    headers.set('Shield-Retry', 'yes');
    for (let attempt = 1; ; attempt++) {
      const response = await send(input, { ...init, headers });
      const now = performance.now();
      const wait = appointment(response);
      if (wait === undefined || attempt >= attempts || now + wait > end || !isReplayable(request, init, response)) {
        return response;
      }
      carryTicket(headers, response);
      response.body?.cancel().catch(() => {}); // nobody reads it
      await until(now + wait, signal);
    }
  };
}

/** Returns how many milliseconds a rejection asks its client to wait; undefined if it does not say. */
function appointment({ status, headers }) {
  if ((status !== 429 && status !== 503) || headers.get('X-Should-Retry')?.toLowerCase() === 'false') {
    return undefined;
  }
  const ms = headers.get('Retry-After-Ms') ?? '';
  if (/^\d+$/.test(ms)) {
    return Number(ms);
  }
  const after = headers.get('Retry-After') ?? '';
  if (/^\d+$/.test(after)) {
    return Number(after) * 1000;
  }
  const at = date(after);
  if (Number.isNaN(at)) {
    return undefined;
  }
  // The date is by the server's clock. So is Date, and it is rounded down: nobody comes early.
  const sent = date(headers.get('Date') ?? '');
  return Math.max(0, at - (Number.isNaN(sent) ? Date.now() : sent));
}

/** Returns an HTTP date in milliseconds since 1970. Date.parse alone takes "-1" for a date, and local time for GMT. */
function date(text) {
  return /^[A-Z][a-z]+,? /.test(text) ? Date.parse(text.endsWith(' GMT') ? text : `${text} GMT`) : NaN;
}

/** Reports whether the request can be sent again from the start. */
function isReplayable(request, init, response) {
  const method = (init.method ?? request?.method ?? 'GET').toUpperCase();
  if (method === 'GET' || method === 'HEAD') {
    return true;
  }
  if (response.redirected) {
    return false; // what was sent has arrived, and another request was rejected
  }
  const { body } = init;
  if (body === undefined || body === null) {
    return !request || request.body === null; // that of a Request is a stream; some browsers do not show it
  }
  return typeof body === 'string' || body instanceof ArrayBuffer || ArrayBuffer.isView(body) ||
    body instanceof URLSearchParams || body instanceof Blob || body instanceof FormData;
}

/** Has the next request bring the ticket of a rejection. Browsers do it themselves, and let no script do it. */
function carryTicket(headers, response) {
  const cookie = response.headers.getSetCookie?.().find((c) => c.startsWith(`${TICKET}=`));
  if (cookie) {
    const others = (headers.get('Cookie') ?? '').split(/; */).filter((c) => c && !c.startsWith(`${TICKET}=`));
    headers.set('Cookie', [...others, cookie.split(';')[0]].join('; '));
  }
}

/** Resolves at an instant of performance.now(), not before: timers are up to a millisecond early. */
async function until(instant, signal) {
  for (let left; (left = instant - performance.now()) > 0;) {
    await new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const abort = () => {
        clearTimeout(timer);
        reject(signal.reason);
      };
      const timer = setTimeout(() => {
        signal?.removeEventListener('abort', abort);
        resolve();
      }, Math.min(Math.ceil(left), LONGEST_TIMER));
      signal?.addEventListener('abort', abort, { once: true });
    });
  }
}
