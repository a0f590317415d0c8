// The first page: what fails, what lacks something, and every stream with its last slides.

import { ask, part } from "./api.js";
import { bars } from "./charts.js";
import { button, bytes, count, firstLine, h, instant, mark, replace, seconds, section, table } from "./dom.js";

const PAGE = 50;

export function open(root, { parameters }) {
  let [offset, find, timer, closed, running, again, pause] = [0, parameters.get("find") ?? "", null, false, false, false, 300];
  const failing = h("div", {}), tiles = h("div", { class: "tiles" }), list = h("div", {}), gaps = h("div", {});
  const field = h("input", { type: "search", placeholder: "Find a stream   /", "aria-label": "Find a stream", "data-find": true, value: find, on: { input: () => {
    [find, offset] = [field.value, 0];
    soon(150);
  } } });
  root.append(h("h1", { class: "unseen" }, "Overview"), failing, tiles, section("Streams", field, list), gaps);

  function soon(delay) {
    timer ??= setTimeout(() => ((timer = null), load()), delay);
  }

  async function load() {
    if (running) return void (again = true);
    running = true;
    const began = performance.now();
    try {
      const told = await ask(`overview?limit=${PAGE}&offset=${offset}&find=${part(find)}`);
      if (!closed) show(told);
    } catch (error) {
      if (!closed) replace(list, h("p", { class: "problem", role: "alert" }, error.message));
    } finally {
      running = false;
      pause = Math.max(300, 5 * (performance.now() - began)); // most of the time is the server's own
      if (again && !closed) (again = false), soon(50);
    }
  }

  function show(told) {
    root.dataset.commit = told.commit;
    replace(failing, told.failing.length ? section("Failing queries", null, failures(told.failing)) : null);
    const used = 1 - told.disk.free / told.disk.total;
    replace(tiles,
      tile("Streams", count(told.total), told.behind ? mark("warn", `${count(told.behind)} went on without a source`) : mark("good", "none lacks a source")),
      tile("Open gaps", count(told.open_gaps), told.open_gaps ? mark("warn", "windows that touch them say so") : mark("good", "nothing is missing since the first rows")),
      tile("Failing queries", count(told.failing.length), told.failing.length ? mark("bad", "see above") : mark("good", "all runs succeed")),
      tile("Disk free", bytes(told.disk.free), h("span", {}, h("meter", { min: 0, max: 1, high: 0.85, value: used, "aria-label": "disk used" }), ` ${Math.round(used * 100)} % of ${bytes(told.disk.total)} used`)),
      tile("Catalog", bytes(told.disk.catalog), `commit ${count(told.commit)}`));
    replace(list, streams(told.streams, find), pager(told));
    replace(gaps, told.gaps.length ? section("Open gaps", null, gapTable(told.gaps)) : null);
  }

  function pager(told) {
    if (told.found <= PAGE && !offset) return null;
    const move = (by) => () => ((offset = Math.max(0, offset + by)), load());
    return h("p", { class: "pager" },
      button("Earlier", move(-PAGE), { disabled: offset === 0, "data-key": "earlier" }),
      `${count(Math.min(offset + 1, told.found))} to ${count(Math.min(offset + PAGE, told.found))} of ${count(told.found)}`,
      button("Later", move(PAGE), { disabled: offset + PAGE >= told.found, "data-key": "later" }));
  }

  load();
  return {
    heard: (event) => ["slide", "gap", "run", "failure", "again", "lost", "rounds"].includes(event.event) && soon(pause),
    close: () => ((closed = true), clearTimeout(timer)),
  };
}

function tile(name, value, note) {
  return h("div", { class: "tile" }, h("span", { class: "name" }, name), h("strong", {}, value), h("span", { class: "note" }, note));
}

export function failures(queries) {
  return table([
    ["Query", "", (query) => h("a", { href: `#/queries/${part(query.name)}`, "data-key": `failing-${query.name}` }, query.name)],
    ["State", "", (query) => mark("bad", `failed ${count(query.failures)} times in a row`)],
    ["Reason", "long", (query) => firstLine(query.error)],
    ["Tried again at", "", (query) => instant(query.retry_at)],
    ["Last delivered", "", (query) => instant(query.delivered_at)],
  ], queries, "Queries whose last run failed");
}

export function gapTable(gaps) {
  return table([
    ["Stream", "", (gap) => h("a", { href: `#/stream/${part(gap.stream)}` }, gap.stream)],
    ["Source", "", (gap) => gap.source ?? "all"],
    ["Kind", "", (gap) => mark("warn", gap.kind)],
    ["After", "", (gap) => instant(gap.start) ?? "ever"],
    ["Up to", "", (gap) => instant(gap.end)],
    ["Cause", "long", (gap) => gap.cause],
  ], gaps, "What is known to be missing");
}

function sources(stream) {
  const bad = stream.sources.filter((source) => source.state === "failed" || source.excluded);
  if (bad.length) return mark("bad", `${bad.length} of ${stream.sources.length} failed`);
  if (stream.missing.length) return mark("warn", `went on without ${stream.missing.join(", ")}`);
  return count(stream.sources.length);
}

function streams(rows, find) {
  return table([
    ["Stream", "", (stream) => h("span", {}, h("a", { href: `#/stream/${part(stream.name)}`, "data-key": `stream-${stream.name}` }, stream.name),
      stream.kind === "view" ? h("small", {}, " view") : null, stream.gaps ? h("small", {}, " ", mark("warn", stream.gaps === 1 ? "1 gap" : `${stream.gaps} gaps`)) : null)],
    ["Clock (UTC)", "", (stream) => instant(stream.now) ?? "not begun"],
    ["Lag", "number", (stream) => seconds(stream.lag)],
    ["Sources", "", sources],
    ["Waits for", "long", (stream) => stream.waits_for],
    ["Live rows", "number", (stream) => count(stream.live_rows)],
    ["Spooled", "number", (stream) => count(stream.spooled_rows)],
    ["Size", "number", (stream) => bytes(stream.bytes)],
    ["In ▴ out ▾", "chart", (stream) => bars(stream.recent, "in", "out", "rows that came and left")],
    ["Late ▴ rejected ▾", "chart", (stream) => bars(stream.recent, "late", "rejected", "rows that were late or rejected")],
    ["Late", "number", (stream) => count(stream.late)],
    ["Rejected", "number", (stream) => count(stream.rejected)],
  ], rows, "Streams", find ? "No stream has such a name." : "There are no streams yet.");
}
