// VitePress' own theme, and <Playground/>, which loads the playground where a page has it: it is two megabytes.
import { h } from "vue";
import { withBase } from "vitepress";
import DefaultTheme from "vitepress/theme";
import "./style.css";

const Playground = {
  mounted() {
    if (customElements.get("shield-playground")) return;
    const script = document.createElement("script");
    script.src = withBase("/playground/shield-playground.js");
    document.head.append(script);
  },
  render: () => h("shield-playground", { "by-class": "" }, "The playground is loading. It needs JavaScript and WebAssembly."),
};

export default { extends: DefaultTheme, enhanceApp: ({ app }) => app.component("Playground", Playground) };
