// Builds the playground into a folder: shield-playground.js, which is all of it, and playground.html, a page with nothing else.
//
//	node site/playground/bundle.mjs OUT
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { gzipSync } from "node:zlib";

const out = resolve(process.argv[2]), here = import.meta.dirname, root = resolve(here, "../..");
const read = (...path) => readFileSync(join(...path), "utf8");
const go = (args, env) => execFileSync("go", args, { cwd: root, encoding: "utf8", env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "inherit"] });

const folder = mkdtempSync(join(tmpdir(), "playground-")), wasm = join(folder, "playground.wasm");
go(["build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", wasm, "./site/playground/wasm"], { GOOS: "js", GOARCH: "wasm", CGO_ENABLED: "0" });
const program = gzipSync(readFileSync(wasm), { level: 9 }).toString("base64");
rmSync(folder, { recursive: true });

const chart = read(root, "chart/chart.js").replace(/^"use strict";\n/, ""), css = read(root, "chart/chart.css");
const worker = read(go(["env", "GOROOT"]).trim(), "lib/wasm/wasm_exec.js") + read(here, "worker.js");

// In the element a class says that it is dark, as pages can have a switch for that.
const dark = /@media \(prefers-color-scheme: dark\) \{\n([^]*)\n\}\n/;
const night = css.match(dark)[1] + "\n" + read(here, "dark.css");
const style = css.replace(dark, "") + read(here, "element.css") + `.dark {\n${night}}\n`;

mkdirSync(out, { recursive: true });
writeFileSync(join(out, "shield-playground.js"), `"use strict";
// The playground of shield. Apache-2.0; it has Go's wasm_exec.js and runtime in it, which are under a BSD licence.
(() => {
${chart}
const STYLE = ${JSON.stringify(style)};
const WORKER = ${JSON.stringify(worker)};
const PROGRAM = "${program}";
${read(here, "element.js")}})();
`);
copyFileSync(join(here, "playground.html"), join(out, "playground.html"));
