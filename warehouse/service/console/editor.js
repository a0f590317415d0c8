// An editor of statements: a text area, with the same text behind it in colours, and a list of words that fit.

import { h } from "./dom.js";

const TOKENS = /(--[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|('(?:[^']|'')*'?)|("(?:[^"]|"")*"?)|(\b\d[\w.]*)|([A-Za-z_][\w$]*(?:\.[A-Za-z_][\w$]*)?)|(\[|\])|(\s+|[^\s])/g;
const WORD = /[A-Za-z_][\w$.]*$/;
const MOST_WORDS = 12;

export class Editor {
  /**
   * @param vocabulary Promise of {relations, functions, keywords}.
   * @param columnsOf Asked for the columns of a relation; gives a promise of names.
   * @param run Called when the statement is to be run.
   */
  constructor(vocabulary, columnsOf, run) {
    this.columnsOf = columnsOf;
    this.words = { relations: [], functions: [], keywords: [] };
    this.columns = new Map();
    this.error = null;
    this.found = [];
    this.chosen = 0;
    this.typed = false;
    this.back = h("pre", { class: "back", "aria-hidden": "true" });
    this.list = h("ul", { class: "words", role: "listbox", id: "words", hidden: true, "aria-label": "Completions" });
    this.text = h("textarea", {
      spellcheck: "false", autocomplete: "off", autocapitalize: "off", wrap: "off", role: "combobox", "aria-label": "Statement",
      "aria-autocomplete": "list", "aria-controls": "words", "aria-expanded": "false", rows: 6,
      on: {
        input: () => ((this.typed = true), this.mark(null), this.complete(false)), scroll: () => this.align(), blur: () => this.hide(), click: () => this.hide(),
        keydown: (event) => this.press(event, run),
      },
    });
    this.element = h("div", { class: "editor" }, this.back, this.text, this.list);
    vocabulary.then((words) => {
      this.words = words;
      this.known = new Set(words.keywords);
      this.callable = new Set(words.functions);
      this.paint();
      if (this.typed && document.activeElement === this.text) this.complete(false);
    }, () => {});
  }

  get value() {
    return this.text.value;
  }

  set value(statement) {
    this.text.value = statement;
    this.mark(null);
  }

  /** Shows where an error is: a position in the text, or null. */
  mark(position) {
    this.error = position;
    this.text.setAttribute("aria-invalid", position === null ? "false" : "true");
    this.paint();
  }

  paint() {
    const parts = [];
    let place = 0, window = false;
    for (const [word, comment, text, name, number, plain, bracket] of this.value.matchAll(TOKENS)) {
      if (bracket) window = bracket === "[";
      let kind = comment ? "comment" : text ? "string" : name ? "name" : number ? "numeral" : "";
      if (plain) kind = this.known?.has(plain.toUpperCase()) ? "keyword" : this.callable?.has(plain.toLowerCase()) ? "function" : "";
      if (window || bracket) kind = "window";
      const wrong = this.error !== null && place <= this.error && this.error < place + word.length;
      parts.push(kind || wrong ? h("span", { class: wrong ? `${kind} wrong` : kind }, word) : word);
      place += word.length;
    }
    if (this.error !== null && this.error >= place) parts.push(h("span", { class: "wrong" }, " "));
    this.back.replaceChildren(...parts, "\n");
    this.align();
  }

  align() {
    this.back.scrollTop = this.text.scrollTop;
    this.back.scrollLeft = this.text.scrollLeft;
  }

  press(event, run) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) return event.preventDefault(), this.hide(), run();
    if (event.key === " " && event.ctrlKey) return event.preventDefault(), this.complete(true);
    if (this.list.hidden) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      this.chosen = (this.chosen + (event.key === "ArrowDown" ? 1 : -1) + this.found.length) % this.found.length;
      this.showWords();
    } else if (event.key === "Tab" || (event.key === "Enter" && this.moved)) {
      event.preventDefault();
      this.take(this.found[this.chosen]);
    } else if (event.key === "Escape") event.preventDefault(), this.hide();
    this.moved = event.key.startsWith("Arrow");
  }

  /** Columns of the relations that the statement names, then relations, functions and keywords that begin so. */
  complete(wanted) {
    const before = this.value.slice(0, this.text.selectionStart);
    this.prefix = before.match(WORD)?.[0] ?? "";
    const quotes = (before.replace(/--[^\n]*/g, "").match(/'/g) ?? []).length;
    if ((!this.prefix && !wanted) || quotes % 2) return this.hide();
    const dot = this.prefix.startsWith("windrow.") ? -1 : this.prefix.lastIndexOf(".");
    const start = this.prefix.slice(dot + 1).toLowerCase();
    const named = this.words.relations.filter(({ name }) => new RegExp(`(^|[^\\w.])"?${name.replace(/[^\w]/g, "\\$&")}"?($|[^\\w])`, "i").test(this.value));
    const fits = (name) => name.toLowerCase().startsWith(start) && name.toLowerCase() !== start;
    const found = [];
    for (const { name } of named) {
      if (!this.columns.has(name)) {
        this.columns.set(name, []);
        this.columnsOf(name).then((columns) => (this.columns.set(name, columns), document.activeElement === this.text && !this.list.hidden && this.complete(false)), () => {});
      }
      for (const column of this.columns.get(name)) if (fits(column.name)) found.push({ word: quoted(column.name), kind: column.type });
    }
    if (dot < 0) {
      for (const { name, kind } of this.words.relations) if (fits(name)) found.push({ word: kind === "system" ? name : quoted(name), kind });
      const upper = /^[A-Z]/.test(this.prefix);
      for (const word of this.words.keywords) if (fits(word)) found.push({ word: upper || !start ? word : word.toLowerCase(), kind: "keyword" });
      if (start) for (const word of this.words.functions) if (fits(word)) found.push({ word: `${word}(`, kind: "function" });
    }
    const once = new Map(found.map((each) => [each.word, each]));
    this.found = [...once.values()].slice(0, MOST_WORDS);
    this.replaced = start.length;
    this.chosen = 0;
    this.moved = false;
    if (this.found.length) this.showWords();
    else this.hide();
  }

  showWords() {
    this.list.replaceChildren(...this.found.map(({ word, kind }, number) =>
      h("li", { role: "option", id: `word-${number}`, "aria-selected": number === this.chosen ? "true" : "false", on: { mousedown: (event) => (event.preventDefault(), this.take(this.found[number])) } },
        h("span", {}, word), h("small", {}, kind))));
    this.list.hidden = false;
    this.text.setAttribute("aria-expanded", "true");
    this.text.setAttribute("aria-activedescendant", `word-${this.chosen}`);
    const { left, top } = this.placeOf(this.text.selectionStart - this.replaced);
    this.list.style.left = `${Math.max(0, Math.min(left, this.element.clientWidth - this.list.offsetWidth))}px`;
    this.list.style.top = `${top + 20}px`;
  }

  /** Where a character stands, by the same text behind the text area. */
  placeOf(position) {
    const walker = document.createTreeWalker(this.back, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (position <= node.length) {
        const range = document.createRange();
        range.setStart(node, position);
        range.setEnd(node, position);
        const box = range.getBoundingClientRect(), own = this.element.getBoundingClientRect();
        return { left: box.left - own.left, top: box.top - own.top };
      }
      position -= node.length;
    }
    return { left: 0, top: 0 };
  }

  take({ word }) {
    const end = this.text.selectionStart;
    this.text.setRangeText(word, end - this.replaced, end, "end");
    this.hide();
    this.mark(null);
  }

  hide() {
    this.list.hidden = true;
    this.text.setAttribute("aria-expanded", "false");
    this.text.removeAttribute("aria-activedescendant");
  }
}

function quoted(name) {
  return /^[a-z_][a-z0-9_]*$/i.test(name) ? name : `"${name.replaceAll('"', '""')}"`;
}

/** Splits an error of the server into what is wrong and where: the server shows the line with a mark under it. */
export function locate(message, statement) {
  const shown = message.match(/^([\s\S]*)\nline (\d+): ([^\n]*)\n( *)\^\s*$/);
  if (!shown) return { text: message, position: null };
  const [, text, line, , blanks] = shown;
  const lines = statement.split("\n");
  const column = Math.max(0, blanks.length - `line ${line}: `.length);
  const position = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0) + column;
  return { text, line: Number(line), column: column + 1, position: Math.min(position, statement.length) };
}
