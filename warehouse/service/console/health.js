// Health: check, clean-up, pins and who holds them, work that waits, versions.

import { ask } from "./api.js";
import { button, bytes, count, facts, h, instant, mark, replace, say, section, table } from "./dom.js";

export function open(root, { session }) {
  let [closed, timer] = [false, null];
  const state = h("div", {}), outcome = h("div", { "aria-live": "polite" });
  const operates = session.rights.includes("operate");
  const why = operates ? null : "Your role may not operate.";
  const check = button("Check all files", () => run(check, "check", showCheck), { disabled: !operates, title: why, "data-key": "check" });
  const clean = button("Clean up now", () => run(clean, "gc", showCleanup), { disabled: !operates, title: why, "data-key": "clean" });
  root.append(h("h1", { class: "unseen" }, "Health"), section("Check and clean-up", h("span", { class: "actions" }, check, clean),
    h("p", { class: "hint" }, "A check reads every file and changes nothing. Slides clean up as they pass; answers never depend on it."), outcome), state);

  async function run(control, path, show) {
    control.disabled = true;
    replace(outcome, h("p", { class: "hint" }, "Working…"));
    try {
      replace(outcome, show(await ask(path, { method: "POST" })));
    } catch (error) {
      replace(outcome, h("p", { class: "problem", role: "alert" }, error.message));
    }
    control.disabled = false;
    load();
  }

  async function load() {
    try {
      const told = await ask("health");
      if (!closed) replace(state, show(told));
    } catch (error) {
      if (!closed) say(error.message, "bad");
    }
  }

  load();
  timer = setInterval(load, 5000);
  return { close: () => ((closed = true), clearInterval(timer)) };
}

function showCheck(report) {
  const looked = `${count(report.streams)} streams, ${count(report.files)} files, ${count(report.segments)} segments, ${count(report.rows)} rows`;
  if (report.ok) return h("p", {}, mark("good", `No problem in ${looked}.`));
  return h("div", {}, h("p", {}, mark("bad", `${count(report.problems.length)} problems in ${looked}:`)), h("ul", {}, report.problems.map((each) => h("li", {}, each))));
}

function showCleanup(report) {
  const waiting = report.waiting ? ` ${count(report.waiting)} replaced files wait for readers.` : "";
  return h("p", {}, mark("good", `${count(report.files)} files (${bytes(report.bytes)}) removed.${waiting}`));
}

function show(told) {
  const rounds = told.failing ? mark("bad", typeof told.failing === "string" ? told.failing : "rounds fail") : mark("good", told.leading ? "runs the periodic queries" : "standing by");
  return [
    section("This server", null, facts([
      ["State", rounds], ["Since", instant(told.started)], ["Process", told.process === null ? null : String(told.process)],
      ["Rounds", count(told.rounds)], ["Runs", count(told.runs)], ["Rounds with an error", count(told.errors)],
      ["Statements", `${told.statements.running} run, ${told.statements.waiting} wait, ${told.statements.workers} workers`],
      ["Listeners", count(told.listeners)], ["Last error", told.last_error],
    ])),
    section("Warehouse", null, facts([
      ["Name", told.warehouse], ["Path", told.path], ["Commit", count(told.commit)], ["Streams and views", count(told.streams)], ["Periodic queries", count(told.queries)],
      ["Catalog", `${bytes(told.catalog_bytes)}, format ${told.format}, ${told.engine}`], ["Disk free", `${bytes(told.disk.free)} of ${bytes(told.disk.total)}`],
      ["Replaced files to remove", count(told.reclaimable_files)],
    ])),
    section("Pins", h("span", { class: "hint" }, "Readers that still need what later commits replace"),
      told.pins === null ? h("p", { class: "empty" }, "Your role may not see who reads.") : table([
        ["Commit", "number", (pin) => count(pin.commit)], ["Commits behind", "number", (pin) => count(pin.behind)],
        ["Process", "number", (pin) => String(pin.process)], ["Program", "long", (pin) => pin.program], ["Pin made", "", (pin) => instant(pin.made)],
      ], told.pins, "Pins of living readers", "Nobody reads an older commit.")),
    section("Background work", null, told.background === null ? h("p", { class: "empty" }, "Your role may not see it.")
      : told.background.length ? h("ul", {}, told.background.map((task) => h("li", {}, task))) : h("p", { class: "empty" }, "Nothing waits.")),
    section("Versions", null, facts(Object.entries(told.versions).map(([name, version]) => [name, version ?? "not installed"]))),
  ];
}
