// Elements and text. What users wrote gets into the page here only, always as text and never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An element: h("a", {href: "#/", on: {click: listener}}, "text", otherElement). */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for pictures. */
export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Puts new content into an element, and the focus back to what had it, known by its data-key. */
export function replace(element, ...children) {
  const active = document.activeElement;
  const key = element.contains(active) ? active.dataset.key : undefined;
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  if (key) [...element.querySelectorAll("[data-key]")].find((other) => other.dataset.key === key)?.focus();
}

/** A table: columns are [title, class, (row) => content]. */
export function table(columns, rows, caption, empty = "None.") {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h(
    "div",
    { class: "wide" },
    h(
      "table",
      {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))),
      h(
        "tbody",
        {},
        rows.map((row) => h("tr", {}, columns.map(([, kind, content]) => h("td", { class: kind }, content(row) ?? "–")))),
      ),
    ),
  );
}

export function section(title, more, ...children) {
  return h("section", {}, h("div", { class: "head" }, h("h2", {}, title), more), ...children);
}

/** Words and a value each, beside one another. */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs.filter(([, value]) => value !== undefined).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value ?? "–"))),
  );
}

/** A mark with a sign and a word, so that it does not depend on its colour. */
export function mark(kind, text) {
  const sign = { good: "✓", bad: "✕", warn: "!", idle: "·", wait: "…" }[kind];
  return h("span", { class: `mark ${kind}` }, h("span", { "aria-hidden": "true" }, sign), " ", text);
}

export function button(text, action, properties = {}) {
  return h("button", { type: "button", ...properties, on: { click: action } }, text);
}

export function count(value) {
  return value === null || value === undefined ? null : Number(value).toLocaleString("en-US");
}

export function bytes(value) {
  if (value === null || value === undefined) return null;
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${value >= 100 || unit === 0 ? value.toFixed(0) : value.toFixed(1)} ${units[unit]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return null;
  if (value < 0) return `−${seconds(-value)}`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400).toLocaleString("en-US")} days`;
}

/** Of an error that shows the statement behind it: what is wrong. */
export function firstLine(text) {
  return text?.split("\n")[0];
}

/** A time in UTC, as all of Windrow writes it, without what is the same in every row. */
export function instant(text) {
  if (text === null || text === undefined || text === "") return null;
  if (typeof text === "number") text = new Date(text / 1000).toISOString(); // microseconds, as views tell their clock
  const short = text.replace("T", " ").replace(/(\.\d+)?(Z|\+00:00)$/, "");
  return h("time", { datetime: text, title: text }, short);
}

/** Says something to those who see the page and those who hear it. */
export function say(text, kind = "good") {
  const place = document.getElementById("said");
  const line = h("p", { class: kind }, text);
  place.replaceChildren(line);
  clearTimeout(say.timer);
  say.timer = setTimeout(() => line.remove(), kind === "bad" ? 12000 : 5000);
}

/** Asks before something is done that cannot be undone. */
export function confirm(question, word) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog",
      { on: { close: () => (dialog.remove(), resolve(dialog.returnValue === "yes")) } },
      h("p", {}, question),
      h("div", { class: "actions" }, button("Cancel", () => dialog.close("no")), button(word, () => dialog.close("yes"), { class: "danger" })),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}
