// Behind wasm_exec.js in a Worker: it is sent the program once, as base64 of gzip, and then what to play.
"use strict";
let ready;

async function start(base64) {
  const bytes = Uint8Array.from(atob(base64), c => c.charCodeAt(0));
  const unpacked = new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
  const go = new Go();
  const { instance } = await WebAssembly.instantiate(await unpacked.arrayBuffer(), go.importObject).catch(e => {
    // What was built is valid, so a policy has refused it: Safari calls that an EvalError, others a CompileError.
    throw e instanceof WebAssembly.CompileError || e instanceof EvalError ?
      "This page doesn't allow WebAssembly; its Content-Security-Policy needs script-src 'wasm-unsafe-eval'" : e;
  });
  go.run(instance); // until the page is closed
}

onmessage = async ({ data }) => {
  try {
    if (data.program) return void await (ready = start(data.program));
    await ready;
    const began = performance.now();
    const outcomes = data.limiters.map(retryAfter => shieldPlay(data.clients, data.capacity, data.obey, retryAfter));
    const error = outcomes.find(o => o instanceof Error);
    postMessage(error ? { error: `The simulator failed: ${error.message}` } : { outcomes, took: performance.now() - began });
  } catch (e) {
    postMessage({ error: typeof e === "string" ? e : `The simulator failed: ${e}` });
  }
};
