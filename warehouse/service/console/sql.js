// Statements: the editor, the answer as rows and as a chart, of which window it is, its plan, history, and asking again.

import { ask, download, part } from "./api.js";
import { draw } from "./charts.js";
import { button, bytes, count, facts, h, instant, mark, replace, say, seconds } from "./dom.js";
import { Editor, locate } from "./editor.js";
import { Rows } from "./rows.js";

const EXPORTS = [["CSV", "text/csv", "csv"], ["CSV for spreadsheets", "text/csv", "csv", "?escape=spreadsheet"], ["JSON", "application/json", "json"], ["JSON lines", "application/x-ndjson", "jsonl"], ["Parquet", "application/vnd.apache.parquet", "parquet"], ["Arrow", "application/vnd.apache.arrow.stream", "arrow"]];
const MOST_HISTORY = 100;
const drafts = new Map();

/** A statement in the address, so that a link opens it; the part behind # is never sent to a server. */
export function linkTo(statement) {
  return `#/sql?q=${part(statement)}`;
}

/** An answer that the server keeps: its rows are fetched in pieces. */
export class Kept {
  constructor(statement) {
    this.statement = statement;
    this.abort = new AbortController();
  }

  /** Asks, and tells of the first rows and of each growth until all are there. */
  async run(grown) {
    const { signal } = this.abort;
    this.id = (await ask("answers", { method: "POST", body: { statement: this.statement }, signal })).id;
    let told = { done: false, rows: 0 };
    while (!told.done) {
      const more = told.columns ? told.rows + 1 : 0;
      const wait = told.columns ? 0.5 : 10;
      told = await ask(`answers/${this.id}?start=0&count=${told.columns ? 0 : 200}&wait=${wait}`, { signal });
      if (told.columns && (told.done || told.rows >= Math.min(more, 1))) grown(told);
      if (!told.done && told.columns) await new Promise((resolve) => setTimeout(resolve, 250));
    }
    return told;
  }

  async piece(start, size, whole = false) {
    return (await ask(`answers/${this.id}?start=${start}&count=${size}&whole=${whole}`, { signal: this.abort.signal })).cells;
  }

  chart(measures) {
    return ask(`answers/${this.id}/chart${measures ? `?measures=${part(JSON.stringify(measures))}` : ""}`, { signal: this.abort.signal });
  }

  close() {
    this.abort.abort();
    if (this.id) ask(`answers/${this.id}`, { method: "DELETE", keepalive: true }).catch(() => {});
  }
}

export function open(root, { session, parameters }) {
  const memory = `windrow.history.${session.warehouse}`;
  let [kept, rows, endChart, tab, closed, told] = [null, null, () => {}, "rows", false, null];

  const vocabulary = ask("vocabulary");
  const columnsOf = async (name) => (await ask("sql", { method: "POST", body: { statement: `SELECT * FROM ${name.startsWith("windrow.") ? name : `"${name.replaceAll('"', '""')}"`} LIMIT 0` } })).columns;
  const editor = new Editor(vocabulary, columnsOf, () => run());
  editor.value = parameters.get("q") ?? drafts.get(session.warehouse) ?? "";

  const runButton = button("Run", () => run(), { class: "main", title: "Ctrl+Enter" });
  const stopButton = button("Stop", () => stop("The statement was stopped."), { disabled: true });
  const problem = h("div", { class: "problem", role: "alert", hidden: true });
  const progress = h("span", { class: "hint", id: "progress", role: "status" });
  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "The answer" });
  const shown = h("div", { class: "shown", role: "tabpanel" });
  const about = h("aside", { "aria-label": "Window" });
  const past = h("div", { class: "history" });
  const formats = h("select", { "aria-label": "Export", disabled: true, on: { change: () => save() } }, h("option", { value: "" }, "Export…"), EXPORTS.map(([title], number) => h("option", { value: number }, title)));
  const operates = session.rights.includes("operate");
  const toolbar = h("div", { class: "toolbar" }, runButton, stopButton, button("Explain", explain), formats, button("Copy link", copyLink),
    button("Ask again every…", () => askAgain(editor.value, session), { disabled: !operates, title: operates ? null : "Your role may not operate." }), progress);
  root.append(h("h1", { class: "unseen" }, "SQL"), editor.element, toolbar, problem, h("div", { class: "answer" }, h("div", { class: "main-part" }, tabs, shown), about), h("details", { class: "past" }, h("summary", {}, "History"), past));
  showTabs();
  showHistory();
  replace(shown, h("p", { class: "empty" }, "Ctrl+Enter runs the statement. Try ", h("code", {}, "SELECT * FROM windrow.streams"), "."));
  editor.text.focus();

  function showTabs() {
    replace(tabs, [["rows", "Rows"], ["chart", "Chart"], ["plan", "Plan"]].map(([name, title]) =>
      h("button", { type: "button", role: "tab", "aria-selected": tab === name ? "true" : "false", "data-key": `tab-${name}`, on: { click: () => (name === "plan" ? explain() : choose(name)) } }, title)));
  }

  function choose(name) {
    tab = name;
    showTabs();
    endChart();
    endChart = () => {};
    if (name === "rows") replace(shown, rows?.element ?? h("p", { class: "empty" }, "There is no answer yet."));
    else if (name === "chart") showChart();
    rows?.paint();
  }

  function stop(words) {
    kept?.close();
    rows?.close();
    [kept, rows, told] = [null, null, null];
    stopButton.disabled = true;
    formats.disabled = true;
    progress.textContent = words ?? "";
  }

  async function run() {
    const statement = editor.value.trim().replace(/;\s*$/, "");
    if (!statement) return;
    stop();
    problem.hidden = true;
    editor.mark(null);
    replace(about);
    if (tab === "plan") tab = "rows";
    showTabs();
    history.replaceState(null, "", linkTo(editor.value));
    const own = (kept = new Kept(statement));
    const began = performance.now();
    const spent = () => seconds((performance.now() - began) / 1000);
    progress.textContent = "Running…";
    stopButton.disabled = false;
    const note = (outcome) => remember({ statement: editor.value, at: new Date().toISOString(), ...outcome });
    try {
      const end = await own.run((state) => {
        if (own !== kept) return;
        told = state;
        if (!rows) begin(own, state);
        rows.update(state);
        progress.textContent = `${count(state.rows)} rows${state.done ? "" : " so far"}, ${spent()}`;
      });
      if (own !== kept) return;
      if (end.cut) showProblem(end.cut);
      note({ rows: end.rows, seconds: (performance.now() - began) / 1000 });
      if (tab === "chart") showChart();
    } catch (error) {
      if (own !== kept || error.name === "AbortError" || closed) return;
      progress.textContent = "";
      rows?.close();
      rows = null;
      replace(shown, h("p", { class: "empty" }, "There is no answer."));
      showProblem(error.message);
      note({ error: error.message.split("\n")[0] });
    } finally {
      if (own === kept) stopButton.disabled = true;
    }
  }

  function begin(own, state) {
    rows = new Rows((start, size) => own.piece(start, size), (number) => showRow(own, state.columns, number), showProblem);
    formats.disabled = false;
    if (tab !== "chart") choose("rows");
    showAbout(state.about);
  }

  function showProblem(message) {
    const place = locate(message, editor.value);
    editor.mark(place.position);
    const go = place.position === null ? null : button(`line ${place.line}, column ${place.column}`, () => (editor.text.focus(), editor.text.setSelectionRange(place.position, place.position)), { class: "quiet" });
    replace(problem, h("span", {}, place.text), go);
    problem.hidden = false;
  }

  function showAbout(known) {
    replace(about, h("h2", {}, "Window"), known.windows.length ? null : h("p", { class: "empty" }, "No stream was read."),
      known.windows.map((window) => h("div", { class: "window" }, h("h3", {}, window.stream), facts([
        ["Slide", count(window.slide)], ["After", instant(window.start) ?? "ever"], ["Up to", instant(window.end) ?? "not begun"],
        ["Gaps", window.gaps?.length ? h("ul", {}, window.gaps.slice(0, 8).map((gap) => h("li", {}, `${gap.kind}${gap.source ? `, ${gap.source}` : ""}: ${gap.cause}`))) : "none"],
        ["Missing", window.missing?.length ? window.missing.join(", ") : undefined],
      ]))),
      known.windows.length ? facts([
        ["Complete", known.complete ? mark("good", "yes") : mark("warn", "no")], ["Coverage", `${(known.coverage * 100).toFixed(known.coverage === 1 ? 0 : 2)} %`],
        ["Stale by", seconds(known.staleness)], ["Isolation", known.isolation],
      ]) : null);
  }

  async function showChart() {
    tab = "chart";
    showTabs();
    if (!kept?.id || !told?.columns) return replace(shown, h("p", { class: "empty" }, "There is no answer yet."));
    const numbers = told.columns.filter((column) => column.kind === "number").map((column) => column.name);
    const place = h("div", {}), cut = h("p", { class: "hint" });
    const picked = new Set();
    const picks = numbers.length > 1 ? h("fieldset", { class: "picks" }, h("legend", {}, "Draw"), numbers.slice(0, 24).map((name) => h("label", {}, h("input", { type: "checkbox", on: { change: (event) => (event.target.checked ? picked.add(name) : picked.delete(name), redraw()) } }), name))) : null;
    replace(shown, picks, place, cut);
    async function redraw() {
      endChart();
      try {
        const { chart, cut: said } = await kept.chart(picked.size ? numbers.filter((name) => picked.has(name)) : null);
        cut.textContent = said;
        if (!chart) return replace(place, h("p", { class: "empty" }, "There is nothing to draw: a chart needs rows with numbers."));
        delete chart.title;
        endChart = await draw(place, chart, session, "The answer as a chart");
      } catch (error) {
        if (error.name !== "AbortError") replace(place, h("p", { class: "problem" }, error.message));
      }
    }
    await redraw();
  }

  async function explain() {
    tab = "plan";
    showTabs();
    problem.hidden = true;
    try {
      const { explain: plan } = await ask("explain", { method: "POST", body: { statement: editor.value.trim().replace(/;\s*$/, "") } });
      const lines = plan.split("\n");
      const first = lines.findIndex((line) => /^[╭┌]/.test(line));
      const read = first < 0 ? lines : lines.slice(0, first);
      replace(shown, h("div", { class: "plan" }, h("h3", {}, "What is read"), h("ul", {}, read.filter(Boolean).map((line) => h("li", {}, line))), first < 0 ? null : [h("h3", {}, "DuckDB's plan"), h("pre", { tabindex: 0 }, lines.slice(first).join("\n"))]));
    } catch (error) {
      replace(shown, h("p", { class: "empty" }, "There is no plan."));
      showProblem(error.message);
    }
  }

  async function save() {
    const chosen = EXPORTS[formats.value];
    formats.value = "";
    if (!chosen || !kept?.id) return;
    const [title, media, suffix, options = ""] = chosen;
    progress.textContent = `Exporting ${title}…`;
    try {
      await download(`answers/${kept.id}/rows${options}`, media, `answer.${suffix}`);
      progress.textContent = `Exported as ${title}.`;
    } catch (error) {
      showProblem(error.message);
    }
  }

  async function copyLink() {
    history.replaceState(null, "", linkTo(editor.value));
    try {
      await navigator.clipboard.writeText(location.href);
      say("The link is copied; it opens this statement.");
    } catch {
      say("The link is in the address bar; it opens this statement.");
    }
  }

  function read() {
    try {
      return JSON.parse(localStorage.getItem(memory)) ?? [];
    } catch {
      return [];
    }
  }

  function remember(entry) {
    const before = read().filter((each) => each.statement !== entry.statement);
    try {
      localStorage.setItem(memory, JSON.stringify([entry, ...before].slice(0, MOST_HISTORY)));
    } catch {
      // A browser that keeps nothing has no history.
    }
    if (!closed) showHistory();
  }

  function showHistory() {
    const entries = read();
    replace(past, entries.length ? null : h("p", { class: "empty" }, "Statements that you run are kept in this browser."),
      h("ol", {}, entries.map((entry) => h("li", {}, button(entry.statement.length > 300 ? `${entry.statement.slice(0, 300)}…` : entry.statement, () => ((editor.value = entry.statement), editor.text.focus(), scrollTo(0, 0)), { class: "statement" }),
        h("small", {}, instant(entry.at), " ", entry.error ? mark("bad", entry.error) : `${count(entry.rows)} rows, ${seconds(entry.seconds)}`)))),
      entries.length ? button("Clear history", () => (localStorage.removeItem(memory), showHistory()), { class: "quiet" }) : null);
  }

  return {
    redraw: () => tab === "chart" && showChart(),
    close: () => {
      closed = true;
      drafts.set(session.warehouse, editor.value);
      endChart();
      stop();
    },
  };
}

/** One row with its values in full. */
async function showRow(kept, columns, number) {
  const [cells] = await kept.piece(number, 1, true).catch((error) => (say(error.message, "bad"), []));
  if (!cells) return;
  const dialog = h("dialog", { class: "detail", on: { close: () => dialog.remove() } },
    h("div", { class: "head" }, h("h2", {}, `Row ${count(number + 1)}`), button("Close", () => dialog.close())),
    h("table", {}, h("tbody", {}, columns.map((column, position) => h("tr", {}, h("th", { scope: "row" }, column.name, h("small", {}, column.type)), h("td", { class: cells[position] === null ? "null" : "" }, cells[position] ?? "NULL"))))));
  document.body.append(dialog);
  dialog.showModal();
}

/** Makes a periodic query of a statement. */
export function askAgain(statement, session, done = () => {}) {
  const field = (name, value, hint, more = {}) => [h("label", { for: `new-${name}` }, hint), h("input", { id: `new-${name}`, name, value, autocomplete: "off", spellcheck: "false", ...more })];
  const error = h("p", { class: "problem", role: "alert", hidden: true });
  const text = h("textarea", { id: "new-sql", name: "sql", rows: 5, spellcheck: "false", required: true }, statement);
  const dialog = h("dialog", { on: { close: () => dialog.remove() } }, h("form", { on: { submit: (event) => (event.preventDefault(), add(event.target)) } },
    h("h2", {}, "Ask again and again"), field("name", "", "Name of the query and its results", { required: true, maxlength: 128 }),
    field("slide", "", "Every (such as 1 minute; empty if the statement has SLIDE)"), h("label", { for: "new-sql" }, "Statement"), text, error,
    h("div", { class: "actions" }, button("Cancel", () => dialog.close()), h("button", { class: "main" }, "Add query"))));
  async function add(form) {
    const values = Object.fromEntries(new FormData(form));
    error.hidden = true;
    try {
      await ask("queries", { method: "POST", body: { name: values.name, sql: values.sql.trim().replace(/;\s*$/, ""), slide: values.slide.trim() || null } });
      dialog.close();
      say(`${values.name} is asked again each time its window has moved.`);
      done(values.name);
    } catch (problem) {
      error.textContent = problem.message;
      error.hidden = false;
    }
  }
  document.body.append(dialog);
  dialog.showModal();
}
