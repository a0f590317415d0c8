// A table of any number of rows: it has elements only for those in view, and fetches rows in pieces as they come into view.

import { count, h } from "./dom.js";

const ROW = 24; // as in console.css
const TALLEST = 6_000_000; // browsers cannot place elements beyond some ten million pixels
const PIECE = 200;
const MOST_PIECES = 40;

export class Rows {
  /**
   * @param fetchPiece Asked for (start, count); gives rows of texts, null for NULL.
   * @param showRow Called with the number of a row that the reader opens.
   * @param failed Called with what is wrong when a piece cannot be had; no other is then asked for.
   */
  constructor(fetchPiece, showRow, failed) {
    this.failed = failed;
    this.fetchPiece = fetchPiece;
    this.showRow = showRow;
    this.pieces = new Map(); // by number, the last used at the end
    this.asked = new Set();
    this.total = 0;
    this.columns = [];
    this.active = [0, 0];
    this.closed = false;
    this.head = h("div", { class: "row names", role: "row", "aria-rowindex": 1 });
    this.body = h("div", { class: "body", role: "rowgroup" });
    this.space = h("div", { class: "space", role: "presentation" }, this.body);
    this.element = h("div", { class: "rows", role: "grid", tabindex: 0, "aria-label": "Rows of the answer", on: {
      scroll: () => this.paint(), keydown: (event) => this.press(event), wheel: (event) => this.wheel(event),
    } }, this.head, this.space);
    this.watch = new ResizeObserver(() => this.paint());
    this.watch.observe(this.element);
  }

  close() {
    this.closed = true;
    this.watch.disconnect();
    this.pieces.clear();
  }

  /** What is known of the answer by now; `cells` is its first piece. */
  update({ rows, columns, cells }) {
    if (!this.columns.length && columns) {
      this.columns = columns;
      this.keep(0, cells);
      this.showHead(cells);
    }
    // A piece that was fetched before all its rows were there is fetched again.
    const grown = Math.floor(this.total / PIECE);
    if (rows > this.total && this.pieces.get(grown)?.length < PIECE) this.pieces.delete(grown);
    this.total = rows;
    this.height = Math.min(rows * ROW, TALLEST);
    this.space.style.height = `${this.height}px`;
    this.element.setAttribute("aria-rowcount", rows + 1);
    this.element.setAttribute("aria-colcount", this.columns.length);
    this.paint();
  }

  showHead(cells) {
    const widths = this.columns.map((column, number) => {
      const texts = [`${column.name} ${column.type}`, ...cells.slice(0, 60).map((row) => row[number] ?? "NULL")];
      return Math.min(46, Math.max(7, ...texts.map((text) => Math.min(60, text.length + 3))));
    });
    this.element.style.setProperty("--columns", `7ch ${widths.map((width) => `${width}ch`).join(" ")}`);
    this.head.replaceChildren(h("span", { class: "number", role: "columnheader" }, "#"), ...this.columns.map((column, number) =>
      h("span", { role: "columnheader", class: column.kind, "aria-colindex": number + 1, title: `${column.name}: ${column.type}` }, column.name, h("small", {}, column.type))));
  }

  keep(number, cells) {
    this.pieces.delete(number);
    this.pieces.set(number, cells);
    while (this.pieces.size > MOST_PIECES) this.pieces.delete(this.pieces.keys().next().value);
  }

  get room() {
    return Math.max(1, Math.floor((this.element.clientHeight - this.head.offsetHeight) / ROW));
  }

  /** The first row in view. Of very many rows, a pixel of the scroll bar is more than one. */
  get first() {
    if (this.total * ROW <= TALLEST) return Math.floor(this.element.scrollTop / ROW);
    const most = this.element.scrollHeight - this.element.clientHeight;
    return Math.round((this.element.scrollTop / Math.max(1, most)) * Math.max(0, this.total - this.room));
  }

  scrollTo(row) {
    const place = Math.max(0, Math.min(row, this.total - this.room));
    const most = this.element.scrollHeight - this.element.clientHeight;
    this.element.scrollTop = this.total * ROW <= TALLEST ? place * ROW : (place / Math.max(1, this.total - this.room)) * most;
    this.paint();
  }

  paint() {
    if (this.closed || !this.columns.length) return;
    const first = Math.max(0, Math.min(this.first, this.total - 1));
    const last = Math.min(this.total, first + this.room + 2);
    const top = this.total * ROW <= TALLEST ? first * ROW : Math.min(this.element.scrollTop, this.height - (last - first) * ROW);
    this.body.style.transform = `translateY(${Math.max(0, top)}px)`;
    const rows = [];
    for (let row = first; row < last; row++) rows.push(this.row(row));
    this.body.replaceChildren(...rows);
    this.fetch(Math.floor(first / PIECE), Math.floor(Math.max(first, last - 1) / PIECE));
  }

  row(number) {
    const cells = this.pieces.get(Math.floor(number / PIECE))?.[number % PIECE];
    const [active, cell] = this.active;
    return h("div", { class: `row${number === active ? " active" : ""}`, role: "row", "aria-rowindex": number + 2, on: {
      mousedown: () => ((this.active = [number, cell]), setTimeout(() => this.paint())), dblclick: () => this.showRow(number),
    } },
      h("span", { class: "number", role: "rowheader" }, count(number + 1)),
      this.columns.map((column, position) => {
        const text = cells?.[position];
        const kind = `${column.kind}${text === null ? " null" : ""}${number === active && position === cell ? " cell" : ""}`;
        return h("span", { role: "gridcell", class: kind, "aria-colindex": position + 1 }, text === undefined ? "…" : text === null ? "NULL" : text);
      }));
  }

  fetch(from, to) {
    for (let number = from; number <= to; number++) {
      if (this.pieces.has(number)) this.keep(number, this.pieces.get(number));
      else if (!this.asked.has(number)) {
        this.asked.add(number);
        // Whoever drags the bar passes many pieces; only those that are still in view a moment later are fetched.
        setTimeout(() => this.fetchOne(number), 40);
      }
    }
  }

  async fetchOne(number) {
    try {
      const now = Math.floor(this.first / PIECE);
      if (this.closed || Math.abs(number - now) > 1) return;
      const cells = await this.fetchPiece(number * PIECE, PIECE);
      // More rows may have come since; then the piece is not whole, and is asked for again.
      if (cells.length >= Math.min(PIECE, this.total - number * PIECE)) this.keep(number, cells);
    } catch (error) {
      if (!this.closed) this.failed(error.message);
      this.closed = true;
    } finally {
      this.asked.delete(number);
      this.paint();
    }
  }

  wheel(event) {
    if (this.total * ROW <= TALLEST || event.ctrlKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return;
    event.preventDefault();
    this.scrollTo(this.first + Math.sign(event.deltaY) * Math.max(1, Math.round(Math.abs(event.deltaY) / ROW)));
  }

  press(event) {
    let [row, cell] = this.active;
    const far = event.ctrlKey || event.metaKey;
    const moves = {
      ArrowDown: () => (row = far ? this.total - 1 : row + 1), ArrowUp: () => (row = far ? 0 : row - 1),
      ArrowRight: () => cell++, ArrowLeft: () => cell--, PageDown: () => (row += this.room), PageUp: () => (row -= this.room),
      Home: () => (far ? (row = 0) : (cell = 0)), End: () => (far ? (row = this.total - 1) : (cell = this.columns.length - 1)),
    };
    if (event.key === "Enter") return this.showRow(row);
    if (far && event.key === "c" && !String(getSelection())) {
      const text = this.pieces.get(Math.floor(row / PIECE))?.[row % PIECE]?.[cell];
      if (text !== undefined) navigator.clipboard?.writeText(text ?? "");
      return;
    }
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
    this.active = [Math.max(0, Math.min(row, this.total - 1)), Math.max(0, Math.min(cell, this.columns.length - 1))];
    const first = this.first;
    if (this.active[0] < first) this.scrollTo(this.active[0]);
    else if (this.active[0] >= first + this.room) this.scrollTo(this.active[0] - this.room + 1);
    else this.paint();
    this.body.querySelector(".cell")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}
