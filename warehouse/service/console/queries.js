// Periodic queries and views: what is due, what was delivered and what failed, results over time, run now, add, drop.

import { ask, part } from "./api.js";
import { draw } from "./charts.js";
import { button, confirm, count, facts, firstLine, h, instant, mark, replace, say, seconds, section, table } from "./dom.js";
import { askAgain, Kept, linkTo } from "./sql.js";

export function open(root, { session, name }) {
  let [closed, timer, kept, endChart, listed, drawn] = [false, null, null, () => {}, [], ""];
  const operates = session.rights.includes("operate");
  const refused = operates ? null : "Your role may not operate.";
  const list = h("div", {}), one = h("div", {}), views = h("div", {});
  const field = h("input", { type: "search", placeholder: "Find a query   /", "aria-label": "Find a query", "data-find": true, on: { input: showList } });
  root.append(h("h1", { class: "unseen" }, "Queries and views"), one,
    section("Periodic queries", h("span", { class: "actions" }, field, button("Add a query…", () => askAgain("", session, load), { disabled: !operates, title: refused })), list),
    section("Views", button("Add a view…", addView, { disabled: !operates, title: refused }), views));

  async function load() {
    timer = null;
    try {
      const [{ queries }, told] = await Promise.all([ask("queries"), ask("views")]);
      if (closed) return;
      listed = queries.sort((a, b) => b.failures - a.failures || Number(b.due) - Number(a.due) || a.name.localeCompare(b.name));
      showList();
      showViews(told.views);
      if (name) showOne();
    } catch (error) {
      if (!closed) replace(list, h("p", { class: "problem", role: "alert" }, error.message));
    }
  }

  function state(query) {
    if (query.failures) return mark("bad", `failed ${count(query.failures)}×`);
    if (query.waiting) return mark("warn", `${count(query.waiting)} runs behind`);
    return query.due ? mark("wait", "due") : mark("good", "up to date");
  }

  function actions(query) {
    return h("span", { class: "actions" },
      button("Run now", () => run(query.name), { disabled: !operates, title: refused, "aria-label": `Run ${query.name} now`, "data-key": `run-${query.name}` }),
      button("Drop", () => drop("queries", query.name), { disabled: !operates, title: refused, class: "quiet", "aria-label": `Drop ${query.name}`, "data-key": `drop-${query.name}` }));
  }

  function showList() {
    const found = listed.filter((query) => query.name.toLowerCase().includes(field.value.toLowerCase()));
    replace(list, found.length > 200 ? h("p", { class: "hint" }, `The first 200 of ${count(found.length)}`) : null, table([
      ["Query", "", (query) => h("a", { href: `#/queries/${part(query.name)}`, "aria-current": query.name === name ? "true" : null, "data-key": `query-${query.name}` }, query.name)],
      ["State", "", state], ["Every", "", (query) => query.period], ["Last run", "", (query) => instant(query.delivered_at)], ["Behind", "number", (query) => count(query.waiting)],
      ["Runs", "number", (query) => count(query.runs)], ["Missed", "number", (query) => count(query.missed_runs)], ["Last took", "number", (query) => seconds(query.seconds)],
      ["Outdated", "number", (query) => count(query.outdated)], ["Reason of failure", "long", (query) => firstLine(query.error) ?? ""], ["", "", actions],
    ], found.slice(0, 200), "Periodic queries", field.value ? "No query has such a name." : "There are no periodic queries; \"Ask again every…\" on the SQL page makes one."));
  }

  async function showOne() {
    const query = listed.find((each) => each.name === name);
    if (!query) return replace(one, h("p", { class: "problem", role: "alert" }, `There is no query ${name}.`));
    const quoted = `"${name.replaceAll('"', '""')}"`;
    const chart = one.querySelector(".results") ?? h("div", { class: "results" });
    replace(one, h("h1", {}, name, h("small", {}, " query"), h("a", { class: "beside", href: linkTo(`SELECT * FROM ${quoted}`), "data-key": "rows" }, "Results in SQL")),
      query.error ? h("p", { class: "problem", role: "alert" }, mark("bad", `failed ${count(query.failures)} times in a row`), ` ${query.error}`, query.retry_at ? [" It is tried again at ", instant(query.retry_at), "."] : null) : null,
      query.sql ? h("pre", { class: "statement" }, query.sql) : null,
      facts([["State", state(query)], ["Every", query.period], ["Sink", query.sink], ["Slide", count(query.slide)], ["Last run", instant(query.delivered_at)], ["Runs", count(query.runs)], ["Last took", seconds(query.seconds)], ["Priority", count(query.priority)], ["Missed periods", query.missed], ["Revisions", count(query.revisions)]]),
      section("Results over time", null, chart), runsPlace);
    if (drawn === `${query.runs} ${query.revisions}`) return;
    drawn = `${query.runs} ${query.revisions}`;
    showRuns();
    showResults(chart, quoted);
  }

  const runsPlace = h("div", {});

  async function showRuns() {
    try {
      const { rows } = await ask("sql", { method: "POST", body: { statement: 'SELECT "at", outcome, "rows", seconds, staleness, complete, coverage, how, error FROM windrow.runs WHERE query = ? ORDER BY 1 DESC LIMIT 20', params: [name] } });
      if (closed) return;
      replace(runsPlace, section("Last runs", null, table([
        ["At", "", (run) => instant(run[0])], ["Outcome", "", (run) => (run[8] ? mark("bad", run[1]) : mark("good", run[1]))], ["Rows", "number", (run) => count(run[2])], ["Took", "number", (run) => seconds(run[3])], ["Staleness", "number", (run) => seconds(run[4])],
        ["Complete", "", (run) => (run[5] === null ? null : run[5] ? "yes" : mark("warn", `no, ${(run[6] * 100).toFixed(1)} %`))], ["How", "", (run) => run[7]], ["Reason", "long", (run) => firstLine(run[8]) ?? ""],
      ], rows, "Last runs", "It has not run yet.")));
    } catch (error) {
      if (!closed) replace(runsPlace, h("p", { class: "hint" }, error.message));
    }
  }

  async function showResults(place, quoted) {
    kept?.close();
    const own = (kept = new Kept(`SELECT * EXCLUDE (_window_start) FROM ${quoted}`));
    try {
      const told = await own.run(() => {});
      const numbers = told.columns.filter((column) => column.kind === "number" && !column.name.startsWith("_")).map((column) => column.name);
      const { chart, cut } = numbers.length ? await own.chart(numbers) : { chart: null };
      if (closed || own !== kept) return;
      endChart();
      if (!chart) return replace(place, h("p", { class: "empty" }, told.rows ? "The results have no numbers to draw." : "Nothing has been delivered yet."));
      delete chart.title;
      endChart = await draw(place, chart, session, `Results of ${name} over time`);
      if (cut) place.append(h("p", { class: "hint" }, cut));
    } catch (error) {
      if (!closed && error.name !== "AbortError") replace(place, h("p", { class: "hint" }, error.message));
    }
  }

  async function run(query) {
    try {
      const { runs } = await ask(`queries/${part(query)}/run`, { method: "POST" });
      say(runs.length ? `${query} has run.` : `${query} had nothing to do.`);
    } catch (error) {
      say(error.message, "bad");
    }
    load();
  }

  async function drop(kind, dropped) {
    if (!(await confirm(`Drop ${dropped} and its ${kind === "views" ? "rows" : "results"}?`, "Drop"))) return;
    try {
      await ask(`${kind}/${part(dropped)}`, { method: "DELETE" });
      say(`${dropped} is dropped.`);
      if (dropped === name) return void (location.hash = "#/queries");
    } catch (error) {
      say(error.message, "bad");
    }
    load();
  }

  function showViews(known) {
    replace(views, table([
      ["View", "", (view) => h("a", { href: `#/stream/${part(view.name)}`, "data-key": `view-${view.name}` }, view.name)],
      ["Statement", "long", (view) => (view.sql ? h("code", {}, view.sql) : null)], ["Clock (UTC)", "", (view) => instant(view.now)],
      ["Rows leave", "", (view) => (view.pattern ? h("span", { title: view.why }, String(view.pattern)) : null)], ["Waits for", "long", (view) => [view.waiting_for ?? view.waits_for ?? []].flat().join(", ")],
      ["", "", (view) => button("Drop", () => drop("views", view.name), { disabled: !operates, title: refused, class: "quiet", "aria-label": `Drop ${view.name}`, "data-key": `drop-view-${view.name}` })],
    ], known, "Views", "There are no views."));
  }

  function addView() {
    const error = h("p", { class: "problem", role: "alert", hidden: true });
    const dialog = h("dialog", { on: { close: () => dialog.remove() } }, h("form", { on: { submit: async (event) => {
      event.preventDefault();
      const values = Object.fromEntries(new FormData(event.target));
      try {
        await ask("views", { method: "POST", body: { name: values.name, sql: values.sql.trim().replace(/;\s*$/, "") } });
        dialog.close();
        load();
      } catch (problem) {
        error.textContent = problem.message;
        error.hidden = false;
      }
    } } }, h("h2", {}, "Add a view"), h("label", { for: "view-name" }, "Name"), h("input", { id: "view-name", name: "name", required: true, maxlength: 128, autocomplete: "off" }),
      h("label", { for: "view-sql" }, "Statement"), h("textarea", { id: "view-sql", name: "sql", rows: 5, required: true, spellcheck: "false" }), error,
      h("div", { class: "actions" }, button("Cancel", () => dialog.close()), h("button", { class: "main" }, "Add view"))));
    document.body.append(dialog);
    dialog.showModal();
  }

  load();
  return {
    heard: (event) => ["run", "failure", "revision", "slide", "again", "lost"].includes(event.event) && (timer ??= setTimeout(load, 300)),
    redraw: () => ((drawn = ""), name && showOne()),
    close: () => {
      closed = true;
      clearTimeout(timer);
      kept?.close();
      endChart();
    },
  };
}
