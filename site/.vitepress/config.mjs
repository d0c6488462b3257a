// The site: README.md, CHANGELOG.md, SECURITY.md and docs/ as they are, and index.md. An address is a page's path in the
// repository without docs/, so relative links between pages mean the same here and on GitHub.
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join, posix, relative, resolve } from "node:path";
import { defineConfig } from "vitepress";

const root = resolve(import.meta.dirname, "../..");
const github = "https://github.com/herdshield/shield";
const base = `/${process.env.SITE_BASE ?? ""}/`.replace(/\/+/g, "/"); // /shield/ for shield, /shield and /shield/; / for none

// Folders of docs/ in the order in which a reader needs them, and what the sidebar calls them. A folder that is not here comes last.
const folders = { start: "Start", guides: "Guides", "on-call": "On call", kubernetes: "Kubernetes", reference: "Reference", explain: "Explanation" };

const markdown = folder => readdirSync(join(root, folder), { recursive: true }).filter(f => f.endsWith(".md")).map(f => posix.join(folder, f));
const pages = new Map([
  ["site/index.md", "index.md"], ["README.md", "readme.md"], ["CHANGELOG.md", "changelog.md"], ["SECURITY.md", "security.md"],
  ...markdown("docs").map(f => [f, f === "docs/README.md" ? "docs.md" : f.replace(/^docs\//, "")]),
]);

const title = page => /^# (.*)/m.exec(readFileSync(join(root, page), "utf8"))[1].replaceAll("`", "");
const link = page => "/" + pages.get(page).replace(/\.md$/, "").replace(/^index$/, "");

// sidebar has a folder's pages in the order in which docs/README.md links them, and then those that it does not.
function sidebar() {
  const index = existsSync(join(root, "docs/README.md")) ? readFileSync(join(root, "docs/README.md"), "utf8") : "";
  const place = page => {
    const at = index.indexOf(`](${page.replace(/^docs\//, "")}`);
    return at < 0 ? Infinity : at;
  };
  const pagesOf = folder => [...pages.keys()].filter(page => page.startsWith(`docs/${folder}/`));
  const rank = folder => Object.keys(folders).indexOf(folder) + 1 || Infinity;
  const groups = [...new Set([...pages.keys()].map(page => /^docs\/(.*?)\//.exec(page)?.[1]).filter(Boolean))]
    .sort((a, b) => rank(a) - rank(b))
    .map(folder => ({
      text: folders[folder] ?? folder,
      items: pagesOf(folder).sort((a, b) => place(a) - place(b) || title(a).localeCompare(title(b))).map(page => ({ text: title(page), link: link(page) })),
    }));
  const about = ["README.md", "docs/README.md", "CHANGELOG.md", "SECURITY.md"].filter(page => pages.has(page));
  const names = { "README.md": "Overview", "docs/README.md": "All pages" };
  return [...groups, { text: "About", items: about.map(page => ({ text: names[page] ?? title(page), link: link(page) })) }];
}

// slug makes a heading's anchor as GitHub does.
const slug = text => text.trim().toLowerCase().replace(/[^\p{L}\p{M}\p{N}\p{Pc}\- ]/gu, "").replaceAll(" ", "-");

const dead = []; // links that lead nowhere, apart from those to pages, which VitePress finds

// links turns those to other files into addresses on the site, if they are pages of it, and else on GitHub.
function links(md) {
  md.core.ruler.push("repository", ({ tokens, env }) => {
    const from = dirname(relative(root, env.realPath ?? env.path)); // in the repository, also of a page that has been renamed
    for (const token of tokens.flatMap(t => t.children ?? [])) {
      const href = token.type === "link_open" && token.attrGet("href");
      if (!href || /^([a-z]+:|#|\/)/.test(href)) continue;
      const [path, anchor] = href.split("#"), file = posix.join(from, decodeURI(path)).replace(/\/$/, "");
      const hash = anchor ? `#${anchor}` : "";
      if (pages.has(file)) {
        token.attrSet("href", link(file) + hash);
        continue;
      }
      const found = statSync(join(root, file), { throwIfNoEntry: false });
      if (!found) dead.push(`${relative(root, env.realPath ?? env.path)}: ${href} is no file of the repository`);
      else token.attrSet("href", `${github}/${found.isDirectory() ? "tree" : "blob"}/main/${file}${hash}`);
    }
  });
}

// check fails the build for a link that leads to no file, or to a heading that is not there.
function check({ outDir }) {
  const html = new Map(readdirSync(outDir, { recursive: true }).filter(f => f.endsWith(".html")).map(f => ["/" + f, readFileSync(join(outDir, f), "utf8")]));
  for (const [page, text] of html) {
    for (const [, href] of text.matchAll(/<a [^>]*href="([^"]*#[^"]*)"/g)) {
      if (/^[a-z]+:/.test(href)) continue;
      const [path, id] = href.split("#"), to = path === "" ? page : "/" + path.slice(base.length);
      if (!html.get(to.endsWith("/") ? to + "index.html" : to)?.includes(` id="${decodeURIComponent(id)}"`)) dead.push(`${page.slice(1)}: ${href} is no heading of that page`);
    }
  }
  if (dead.length) throw new Error(`dead links:\n${[...new Set(dead)].join("\n")}`);
}

// stem makes one word of limit, limits, limited, limiter and limiting. It runs in browsers, so it can use nothing else of this file.
function stem(term) {
  const word = term.toLowerCase();
  return word.length > 4 ? word.replace(/(?:ings?|ers?|ed|es|s|e)$/, "") : word;
}

// weight is how much a result counts in the search. The start of a page, which says what all of it is about, counts for more than a
// section, and the changelog for less than pages that explain what changed.
function weight(id, _, { titles }) {
  return (id.includes("/changelog") ? 0.3 : 1) * (titles.length ? 1 : 2);
}

export default defineConfig({
  title: "shield",
  description: "A rate limiter and load shedder that gives each rejected client its own time to come back",
  lang: "en-US",
  head: [["link", { rel: "icon", href: "data:," }]],
  base,
  srcDir: root,
  outDir: join(import.meta.dirname, "../dist"),
  cacheDir: join(import.meta.dirname, "../node_modules/.vitepress"),
  srcExclude: ["**/node_modules/**", ...readdirSync(root).filter(f => !["docs", "site"].includes(f)).map(f => statSync(join(root, f)).isDirectory() ? `${f}/**` : f)
    .filter(f => !pages.has(f)), "site/README.md"],
  rewrites: Object.fromEntries(pages),
  buildEnd: check,
  lastUpdated: false,
  vite: {
    publicDir: join(import.meta.dirname, "../public"),
    resolve: { alias: { vue: join(import.meta.dirname, "../node_modules/vue") } }, // pages are in folders without node_modules
    build: { chunkSizeWarningLimit: 2000 },
  },
  vue: { template: { compilerOptions: { isCustomElement: tag => tag === "shield-playground" } } },
  markdown: {
    anchor: { slugify: slug },
    languageAlias: { caddyfile: "nginx", promql: "sql" }, // the nearest that the highlighter knows
    config: links,
  },
  themeConfig: {
    search: { provider: "local", options: { miniSearch: { options: { processTerm: stem }, searchOptions: { boostDocument: weight } } } },
    sidebar: sidebar(),
    nav: [
      { text: "Playground", link: "/" },
      { text: "Docs", link: link(pages.has("docs/README.md") ? "docs/README.md" : "docs/start/tutorial.md") },
      { text: "Changelog", link: "/changelog" },
    ],
    socialLinks: [{ icon: "github", link: github }],
    outline: [2, 3],
  },
});
