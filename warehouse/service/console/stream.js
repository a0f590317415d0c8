// One stream: its clock and sources, the cells and what the last slide did to them, lifetimes left, segments, rejected rows.

import { ask, part } from "./api.js";
import { draw } from "./charts.js";
import { button, bytes, confirm, count, facts, h, instant, mark, replace, say, seconds, section, svg, table } from "./dom.js";
import { linkTo } from "./sql.js";

export function open(root, { session, name }) {
  let [closed, timer, told, ends, all] = [false, null, null, [], false];
  const operates = session.rights.includes("operate");
  const head = h("div", {}), slides = h("div", {}), lifetimes = h("div", {}), cells = h("div", {}), sources = h("div", {}), segments = h("div", {}), rejected = h("div", {}), rejectedRows = h("div", {}), opinion = h("div", { "aria-live": "polite" });
  const advise = button("Ask the advisor", askAdvisor, { disabled: !operates, title: operates ? null : "Your role may not operate.", "data-key": "advise" });
  const layout = h("div", {});
  root.append(head,
    h("div", { class: "pair" }, section("Last slides", null, slides), section("Lifetimes left", null, lifetimes)),
    h("div", { class: "pair" }, section("Cells", null, cells), section("Layout", advise, layout, opinion)),
    section("Sources", null, sources), section("Rejected rows", null, rejected, rejectedRows), section("Segments", null, segments));

  async function load() {
    timer = null;
    try {
      const next = await ask(`streams/${part(name)}/layout`);
      if (closed) return;
      told = next;
      show();
    } catch (error) {
      if (!closed) replace(head, h("p", { class: "problem", role: "alert" }, error.message));
    }
  }

  function show() {
    root.dataset.slide = told.number;
    replace(head, h("h1", {}, told.stream, h("small", {}, ` ${told.kind}`), h("a", { class: "beside", href: linkTo(`SELECT * FROM "${told.stream.replaceAll('"', '""')}" LIMIT 1000`), "data-key": "ask" }, "Ask in SQL")), facts([
      ["Clock (UTC)", instant(told.now) ?? "not begun"], ["Slide", count(told.number)], ["Lag", seconds(told.lag)], ["Slides every", told.slide],
      ["Rows live for", told.expires ? `as column ${told.expires} says` : told.lifetime ?? "ever"], ["Search key", told.key.join(", ") || "none"],
      ["Waits for", told.waits_for], ["Complete", told.complete ? mark("good", "yes") : mark("warn", `${(told.coverage * 100).toFixed(2)} % covered`)],
      ["Live rows", count(told.live_rows)], ["Size", bytes(told.bytes)], ["Spooled rows", count(told.spooled_rows)], ["Late rows", count(told.late)], ["Rejected rows", count(told.rejected)],
    ]), told.gaps.length ? section("Open gaps", null, gapTable(told.gaps)) : null);
    drawCharts();
    replace(sources, sourceTable(told.sources), ...(told.partitions?.length ? [partitionTable(told.partitions)] : []));
    showLayout();
    const reasons = Object.entries(told.reasons ?? {}).sort(([, a], [, b]) => b - a);
    replace(rejected, table([["Reason", "", ([reason]) => reason], ["Rows", "number", ([, rows]) => count(rows)]], reasons, "Rejected rows by reason", told.reasons ? "No rejected rows are kept." : "Your role may not see rejected rows."),
      reasons.length ? h("p", { class: "actions" }, button("Show rows", showRejected, { "data-key": "show-rejected" }),
        button("Replay", replay, { disabled: !operates, title: operates ? "Appends them again; what is still not acceptable stays rejected" : "Your role may not operate.", "data-key": "replay" })) : null);
    if (!reasons.length) replace(rejectedRows);
  }

  function showLayout() {
    const { layout: lies } = told;
    const hidden = h("p", { class: "empty" }, "Your role may not see how rows are stored.");
    replace(cells, lies ? lies.layouts.map((each) => grid(lies, each)) : hidden);
    replace(layout, told.index ? [h("p", {}, h("code", {}, told.index)), h("p", { class: "hint" }, told.why),
      lies?.moved ? h("p", {}, mark("wait", `Moving to this layout: ${bytes(lies.moved.moved)} of ${bytes(lies.moved.total)}`)) : null] : hidden);
    replace(segments, lies ? [segmentTable(all ? lies.segments : lies.segments.slice(0, 12)), lies.segment_count > 12 ? h("p", { class: "pager" }, `The ${count(all ? lies.segments.length : 12)} largest of ${count(lies.segment_count)}`,
      all ? null : button("Show more", () => ((all = true), showLayout()), { "data-key": "more" })) : null] : hidden);
  }

  async function drawCharts() {
    ends.splice(0).forEach((end) => end());
    if (!told.recent.length) replace(slides, h("p", { class: "empty" }, "The stream has not slid yet."));
    else ends.push(await draw(slides, slideChart(told.recent, Math.max(160, slides.clientWidth - 120)), session, "Rows in, out, late and rejected in the last slides"));
    const left = told.layout?.lifetimes;
    if (!left) replace(lifetimes, h("p", { class: "empty" }, "Your role may not see it."));
    else if (!left.buckets.length) replace(lifetimes, h("p", { class: "empty" }, left.forever ? `${count(left.forever)} rows live for ever.` : "No row is live."));
    else {
      ends.push(await draw(lifetimes, lifetimeChart(left, told.slide_seconds), session, "Rows by the time that they have left to live"));
      if (left.forever) lifetimes.append(h("p", { class: "hint" }, `${count(left.forever)} more rows live for ever.`));
    }
  }

  async function askAdvisor() {
    replace(opinion, h("p", { class: "hint" }, "Playing layouts through…"));
    try {
      const advice = await ask(`streams/${part(name)}/advice`);
      replace(opinion, h("p", {}, advice.clearly_better ? mark("warn", "Another layout would be clearly better.") : mark("good", "The layout is right."), " ", advice.why), table([
        ["Layout", "", (each) => `${each.index.name} ${each.index.rows}×${each.index.columns} ${each.index.maintenance}`],
        ["Slide ms", "number", (each) => each.update.toFixed(2)], ["Probe ms", "number", (each) => each.probe.toFixed(3)], ["Scan ms", "number", (each) => each.scan.toFixed(2)],
        ["In all", "number", (each) => each.total.toFixed(2)], ["Space", "number", (each) => bytes(each.space)],
      ], [advice.current, ...advice.alternatives].slice(0, 8), "The layout as it is, then the best others"), h("p", { class: "hint" }, advice.key_why));
    } catch (error) {
      replace(opinion, h("p", { class: "problem" }, error.message));
    }
  }

  async function showRejected() {
    try {
      const { rows, total } = await ask(`streams/${part(name)}/rejected`);
      replace(rejectedRows, rows.length < total ? h("p", { class: "hint" }, `The newest ${rows.length} of ${count(total)}`) : null, table([
        ["At", "", (row) => instant(row.at)], ["Reason", "", (row) => row.reason], ["Source", "", (row) => row.source], ["Row", "long", (row) => h("code", {}, JSON.stringify(row.row))],
      ], rows, "Rejected rows"));
    } catch (error) {
      replace(rejectedRows, h("p", { class: "problem" }, error.message));
    }
  }

  async function replay() {
    if (!(await confirm(`Append the rejected rows of ${name} again?`, "Replay"))) return;
    try {
      const report = await ask(`streams/${part(name)}/replay`, { method: "POST" });
      say(`${count(report.accepted)} rows were taken, ${count(Object.values(report.rejected).reduce((sum, rows) => sum + rows, 0))} rejected again.`);
      replace(rejectedRows);
      load();
    } catch (error) {
      say(error.message, "bad");
    }
  }

  load();
  return {
    heard: (event) => (event.stream === name || event.event === "again") && (timer ??= setTimeout(load, 200)),
    redraw: () => told && drawCharts(),
    close: () => ((closed = true), clearTimeout(timer), ends.forEach((end) => end())),
  };
}

function gapTable(gaps) {
  return table([["Source", "", (gap) => gap.source ?? "all"], ["Kind", "", (gap) => mark("warn", gap.kind)], ["After", "", (gap) => instant(gap.start) ?? "ever"], ["Up to", "", (gap) => instant(gap.end)], ["Cause", "long", (gap) => gap.cause]], gaps, "What is known to be missing");
}

function sourceTable(sources) {
  return table([
    ["Source", "", (source) => source.name],
    ["State", "", (source) => mark({ failed: "bad", "never seen": "warn", behind: "warn", current: "good" }[source.state], source.state + (source.excluded ? ", excluded" : ""))],
    ["Progress", "", (source) => instant(source.progress)], ["Holds the clock", "", (source) => (source.waited_for ? mark("wait", "yes") : "no")],
    ["Last heard", "", (source) => instant(source.heard)], ["Rejected rows", "number", (source) => count(source.rejected)],
  ], sources, "Sources", "No source has sent anything.");
}

function partitionTable(partitions) {
  return table([
    ["Partition", "", (each) => each.name], ["Next offset", "number", (each) => count(each.offset)],
    ["Lag", "number", (each) => count(each.lag)], ["Seen", "", (each) => instant(each.seen)],
  ], partitions, "Kafka");
}

function segmentTable(segments) {
  return table([
    ["Segment", "number", (each) => String(each.segment)], ["Layout", "number", (each) => String(each.layout)], ["Row", "number", (each) => String(each.row)], ["Column", "number", (each) => String(each.column)],
    ["Rows", "number", (each) => count(each.rows)], ["Dead", "number", (each) => count(each.dead_rows)], ["Size", "number", (each) => bytes(each.bytes)],
    ["Slides", "number", (each) => `${each.first_slide} – ${each.last_slide}`], ["Times", "", (each) => h("span", {}, instant(each.min_time), " – ", instant(each.max_time))], ["Last expiry", "", (each) => instant(each.max_expiry) ?? "never"],
  ], segments, "Segments", "There are no segments.");
}

/** Rows are insertion slots, columns expiry slots; each cell is as full as its bytes, the dead ones hatched. */
function grid(lies, layout) {
  const newest = layout === lies.layouts.at(-1);
  const own = lies.cells.filter((cell) => cell.layout === layout.layout);
  if (!own.length && !newest) return null;
  const size = Math.max(6, Math.min(54, Math.floor(560 / Math.max(layout.rows, layout.columns))));
  const [left, top] = [58, 34];
  const most = Math.max(1, ...own.map((cell) => cell.live_bytes + cell.dead_bytes));
  const at = new Map(own.map((cell) => [`${cell.row},${cell.column}`, cell]));
  const emptied = newest ? lies.emptied : [], filled = newest ? lies.filled : null;
  const shapes = [];
  for (let row = 0; row < layout.rows; row++) {
    for (let column = 0; column < layout.columns; column++) {
      const cell = at.get(`${row},${column}`);
      const [x, y] = [left + column * size, top + row * size];
      const words = cell ? `row ${row}, column ${column}: ${count(cell.rows)} rows in ${cell.segments} segments, ${bytes(cell.live_bytes)} live, ${bytes(cell.dead_bytes)} dead` : `row ${row}, column ${column}: empty`;
      const part = [svg("title", {}, words), svg("rect", { class: "empty-cell", x, y, width: size - 2, height: size - 2 })];
      if (cell) {
        const room = size - 2;
        const full = Math.max(2, Math.sqrt((cell.live_bytes + cell.dead_bytes) / most) * room);
        const dead = (cell.dead_bytes / Math.max(1, cell.live_bytes + cell.dead_bytes)) * full;
        part.push(svg("rect", { class: "live-part", x, y: y + room - full, width: room, height: full }));
        if (dead > 0.5) part.push(svg("rect", { class: "dead-part", x, y: y + room - full, width: room, height: dead, fill: "url(#hatch)" }));
        if (size >= 30) part.push(svg("text", { x: x + room / 2, y: y + room / 2 + 4, "text-anchor": "middle" }, short(cell.rows - cell.dead_rows)));
      }
      shapes.push(svg("g", {}, part));
    }
  }
  const [width, height] = [left + layout.columns * size + 4, top + layout.rows * size + 4];
  const picture = svg("svg", { class: "cells", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${layout.rows} by ${layout.columns} cells; the last slide filled row ${filled ?? "–"} and emptied column ${emptied.join(", ") || "–"}` },
    svg("defs", {}, svg("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("rect", { class: "hatch-ground", width: 5, height: 5 }), svg("line", { class: "hatch-line", x1: 0, y1: 0, x2: 0, y2: 5 }))),
    shapes,
    filled === null ? null : [svg("rect", { class: "filled", x: left - 2, y: top + filled * size - 2, width: layout.columns * size + 2, height: size + 2 }), svg("text", { class: "note", x: left - 6, y: top + filled * size + size / 2 + 4, "text-anchor": "end" }, "filled ▸")],
    emptied.map((column, number) => [svg("rect", { class: "emptied", x: left + column * size - 2, y: top - 2, width: size + 2, height: layout.rows * size + 2 }), number ? null : svg("text", { class: "note", x: Math.min(Math.max(left + column * size + size / 2, left + 20), width - 26), y: top - 10, "text-anchor": "middle" }, "▾ emptied")]));
  return h("div", {}, newest ? null : h("h3", {}, `Older layout ${layout.layout}`), h("div", { class: "wide" }, picture),
    h("p", { class: "legend" }, h("span", { class: "key live" }), "live", h("span", { class: "key dead" }), "dead rows", h("span", {}, "Height shows bytes, the number live rows. Rows are times of insertion, columns times of expiry.")),
    h("details", {}, h("summary", {}, "As a table"), table([
      ["Row", "number", (cell) => String(cell.row)], ["Column", "number", (cell) => String(cell.column)], ["Segments", "number", (cell) => count(cell.segments)], ["Rows", "number", (cell) => count(cell.rows)], ["Dead rows", "number", (cell) => count(cell.dead_rows)], ["Live", "number", (cell) => bytes(cell.live_bytes)], ["Dead", "number", (cell) => bytes(cell.dead_bytes)],
    ], own, "Cells")));
}

function short(rows) {
  if (rows < 1000) return String(rows);
  return rows < 1e6 ? `${(rows / 1e3).toFixed(rows < 1e4 ? 1 : 0)}k` : `${(rows / 1e6).toFixed(1)}M`;
}

/** One small chart for each kind, so that a few late rows are seen beside many others, and nothing hangs on colours. */
function slideChart(recent, width) {
  const kinds = ["in", "out", "late", "rejected"];
  const values = recent.flatMap((slide) => kinds.map((kind) => ({ clock: slide.now, rows: slide[kind] ?? 0, kind })));
  return {
    $schema: "https://vega.github.io/schema/vega-lite/v6.json", data: { values },
    facet: { row: { field: "kind", type: "nominal", sort: kinds, header: { title: null, labelAngle: 0, labelAlign: "left", labelPadding: 4 } } },
    spacing: 10, resolve: { scale: { y: "independent" } },
    spec: {
      width, height: 44, mark: { type: "area", line: true, opacity: 0.25, interpolate: "step-after" },
      encoding: {
        x: { field: "clock", type: "temporal", title: null, scale: { type: "utc" } }, y: { field: "rows", type: "quantitative", title: null, axis: { tickCount: 2 } },
        tooltip: ["clock", "rows"].map((field) => ({ field, type: "nominal" })),
      },
    },
  };
}

function lifetimeChart(left, slot) {
  const unit = [[86400, "days"], [3600, "hours"], [60, "minutes"], [1, "seconds"]].find(([size]) => left.buckets.length * left.width * slot >= 2 * size) ?? [1, "seconds"];
  const width = (left.width * slot) / unit[0];
  const values = left.buckets.map((rows, number) => ({ from: number * width, to: (number + 1) * width, rows }));
  return {
    $schema: "https://vega.github.io/schema/vega-lite/v6.json", data: { values }, mark: { type: "bar" },
    encoding: {
      x: { field: "from", type: "quantitative", title: `${unit[1]} left to live`, bin: { binned: true } }, x2: { field: "to" }, y: { field: "rows", type: "quantitative", title: "rows" },
      tooltip: ["from", "to", "rows"].map((field) => ({ field, type: "quantitative" })),
    },
  };
}
