// Charts: Vega-Lite specifications drawn by the library that the server has, and small pictures that need none.

import { h, svg } from "./dom.js";

// Times of day have 24 hours.
const HOURS = { milliseconds: ":%S.%L", seconds: "%H:%M:%S", minutes: "%H:%M", hours: "%H:%M", date: "%b %d", week: "%b %d", month: "%b %Y", quarter: "%b %Y", year: "%Y" };

const DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 3], [1, 4]];
const WHOLE = { width: "container", height: 240, autosize: { type: "fit-x", contains: "padding" } };

let library = null;

/** Loads the library once; says why if the server has none. */
async function load(session) {
  if (!session.charts) throw new Error("Charts need vl-convert-python where the server runs: pip install 'windrow[plot]'.");
  library ??= import(`./vega.js?v=${encodeURIComponent(session.charts)}`).catch((error) => {
    library = null;
    throw error;
  });
  return library;
}

function colors() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const axis = { labelColor: color("dim"), titleColor: color("dim"), gridColor: color("line"), domainColor: color("line"), tickColor: color("line"), titleFontWeight: "normal" };
  return {
    background: "transparent", font: "system-ui, sans-serif", axis, view: { stroke: null }, header: { labelColor: color("dim"), labelFontSize: 11 }, area: { color: color("c1") },
    legend: { labelColor: color("ink"), titleColor: color("dim"), orient: "top" },
    title: { color: color("ink"), subtitleColor: color("dim"), anchor: "start" },
    range: { category: [color("c1"), color("c2"), color("c3"), color("c4"), color("c5"), color("c6")] },
    bar: { color: color("c1") }, line: { strokeWidth: 1.5 },
  };
}

const bubble = h("div", { id: "tip", role: "tooltip", hidden: true });

function tip(handler, event, item, value) {
  if (value === null || value === undefined || value === "") return (bubble.hidden = true);
  if (!bubble.isConnected) document.body.append(bubble);
  const pairs = typeof value === "object" ? Object.entries(value) : [["", String(value)]];
  bubble.replaceChildren(...pairs.map(([name, text]) => h("div", {}, name ? `${name}: ` : "", String(text))));
  bubble.hidden = false;
  bubble.style.left = `${Math.min(event.clientX + 12, innerWidth - bubble.offsetWidth - 8)}px`;
  bubble.style.top = `${event.clientY + 14}px`;
}

/** Draws a specification into an element; gives what ends the chart. */
export async function draw(element, specification, session, label) {
  try {
    const { vegaEmbed } = await load(session);
    const place = h("div", { class: "chart", role: "img", "aria-label": label });
    element.replaceChildren(place);
    const { encoding = {}, mark, spec } = specification;
    if (mark) mark.tooltip = true;
    if (mark?.type === "line" && encoding.color?.legend) { // lines differ also in their dashes
      encoding.color.legend = { symbolType: "stroke", symbolSize: 300, ...encoding.color.legend };
      encoding.strokeDash = { ...encoding.color, scale: { range: DASHES } };
    }
    for (const channel of [...Object.values(encoding), ...Object.values(spec?.encoding ?? {})]) {
      if (channel.type === "temporal") channel.axis = { ...channel.axis, format: HOURS };
      if (channel.legend) channel.legend = { title: null, ...channel.legend };
      if (channel.field === "value" && encoding.color?.legend) channel.title = null; // the legend says it
    }
    const drawn = await vegaEmbed(place, spec ? specification : { ...WHOLE, ...specification }, {
      ast: true, actions: false, renderer: "svg", defaultStyle: false, tooltip: tip, config: colors(), mode: "vega-lite",
    });
    return () => drawn.finalize();
  } catch (error) {
    element.replaceChildren(h("p", { class: "empty" }, error.message));
    return () => {};
  }
}

/** A row of small bars, one for each slide; `down` hangs under the line. The title has the numbers. */
export function bars(slides, up, down, label) {
  const width = 3, height = 26, room = 40;
  const most = Math.max(1, ...slides.map((slide) => Math.max(slide[up] ?? 0, slide[down] ?? 0)));
  const middle = height / 2;
  const shapes = slides.slice(-room).map((slide, number, shown) => {
    const x = (room - shown.length + number) * width;
    const size = (value) => (value ? Math.max(1, Math.round((value / most) * (middle - 1))) : 0);
    const [high, low] = [size(slide[up]), size(slide[down])];
    return svg("g", {},
      svg("title", {}, `${slide.now}: ${slide[up] ?? "–"} ${up}, ${slide[down] ?? "–"} ${down}`),
      high ? svg("rect", { class: `bar ${up}`, x, y: middle - high, width: width - 1, height: high }) : null,
      low ? svg("rect", { class: `bar ${down}`, x, y: middle + 1, width: width - 1, height: low }) : null);
  });
  const last = slides.at(-1);
  const words = last ? `${label}; last slide: ${last[up] ?? "unknown"} ${up}, ${last[down] ?? "unknown"} ${down}` : `${label}: no slides`;
  return svg("svg", { class: "bars", viewBox: `0 0 ${room * width} ${height}`, width: room * width, height, role: "img", "aria-label": words },
    svg("line", { class: "axis", x1: 0, x2: room * width, y1: middle + 0.5, y2: middle + 0.5 }), shapes);
}
