// The frame: who asks, the bar, which page is shown, and events for the page.

import { ask, listen, token } from "./api.js";
import { button, firstLine, h, replace, say } from "./dom.js";
import * as health from "./health.js";
import * as overview from "./overview.js";
import * as queries from "./queries.js";
import * as sql from "./sql.js";
import * as stream from "./stream.js";

// The policy of these pages takes no text as HTML. The charts' library empties its place so, which may pass.
globalThis.trustedTypes?.createPolicy("default", {
  createHTML: (text) => {
    if (text === "") return "";
    throw new TypeError("no text becomes HTML here");
  },
});

const PAGES = { "": overview, stream, sql, queries, health };
const TABS = [["", "Overview"], ["sql", "SQL"], ["queries", "Queries and views"], ["health", "Health"]];
const bar = document.getElementById("bar");
const place = document.getElementById("page");

let session = null;
let page = null;
let live = "lost";
let stopListening = () => {};

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // whoever wrote such an address sees that there is no such stream
  }
}

/** What the address says: the page, the name behind it, and its parameters. */
function readAddress() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  return { name: name in PAGES ? name : "", rest: decode(rest.join("/")), parameters: new URLSearchParams(query) };
}

function showBar() {
  const here = readAddress().name;
  const words = { live: ["●", "live"], lost: ["○", "reconnecting"], refused: ["○", "no events"] }[live];
  replace(
    bar,
    h("a", { class: "brand", href: "#/", "data-key": "brand" }, "Windrow", h("span", {}, session?.warehouse ?? "")),
    session && h("nav", { "aria-label": "Pages" }, TABS.map(([name, title]) => {
      const current = name === here || (name === "" && here === "stream");
      return h("a", { href: `#/${name}`, "aria-current": current ? "page" : null, "data-key": `tab-${name}` }, title);
    })),
    session && h("div", { class: "who" },
      h("span", { class: `live ${live}`, id: "live" }, h("span", { "aria-hidden": "true" }, words[0]), ` ${words[1]}`),
      h("span", { title: `may ${session.rights.join(", ")}` }, session.role),
      token.get() ? button("Forget token", () => (token.set(""), start()), { class: "quiet", "data-key": "forget" }) : null),
  );
}

async function showPage() {
  const { name, rest, parameters } = readAddress();
  page?.close?.();
  page = null;
  showBar();
  if (!session) return;
  const root = h("div", { class: `page ${name || "overview"}` });
  replace(place, root);
  document.title = `${rest || TABS.find(([tab]) => tab === name)?.[1] || "Overview"} · ${session.warehouse} · Windrow`;
  page = PAGES[name].open(root, { session, name: rest, parameters });
}

/** Asks for a token; the page comes back when there is one. */
function askForToken(message) {
  stopListening();
  page?.close?.();
  page = session = null;
  showBar();
  const input = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const form = h("form", { class: "token", on: { submit: (event) => {
    event.preventDefault();
    token.set(input.value.trim());
    start();
  } } },
    h("h1", {}, "Windrow"),
    h("p", { role: "alert" }, message),
    h("label", { for: "token" }, "Token"), input,
    h("p", { class: "hint" }, "It is kept in this tab only. An operator makes one with ", h("code", {}, "windrow token create ROLE"), "."),
    h("button", { class: "main" }, "Open"));
  replace(place, form);
  input.focus();
}

async function start() {
  try {
    session = await ask("session");
  } catch (error) {
    if (error.status !== 401) askForToken(error.message);
    return;
  }
  hear();
  showPage();
}

/** Hears events while the tab is seen: a browser opens only six connections to a server, for all of its tabs. */
function hear() {
  stopListening();
  live = session?.rights.includes("read") ? "lost" : "refused";
  if (live === "refused" || document.hidden) return;
  stopListening = listen((event) => {
    if (event.event === "failure") say(`${event.query} failed: ${firstLine(event.error) ?? ""}`, "bad");
    page?.heard?.(event);
  }, (state) => {
    if (live === "lost" && state === "live") page?.heard?.({ event: "again" }); // what was missed meanwhile
    live = state;
    showBar();
  });
}

token.onRefused((event) => askForToken(token.get() ? `The server refused: ${event.message}.` : "This warehouse asks for a token."));
addEventListener("hashchange", showPage);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page?.redraw?.());
document.addEventListener("visibilitychange", () => session && hear());
document.addEventListener("keydown", (event) => {
  const typing = /INPUT|TEXTAREA|SELECT/.test(document.activeElement?.tagName);
  if (event.altKey && event.key >= "1" && event.key <= "4") location.hash = `#/${TABS[event.key - 1][0]}`;
  else if (event.key === "/" && !typing) {
    const field = document.querySelector("[data-find]");
    if (field) (event.preventDefault(), field.focus());
  }
});
start();
