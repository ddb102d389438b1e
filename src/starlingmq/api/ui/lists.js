// Lists with filters, an order, and pages. What is asked for stands in the address of the page, so a link or a reload shows the same.

import {api, el, missing, nodeColumn, number, table} from "./base.js";
import {t} from "./language.js";

const LIMIT = 100;

// ``fields``: name in the API to label; ``choices``: name to {value: label}; ``sorts``: title of a column to name in the API, ``first`` of which is chosen.
export class List {
  constructor(name, {path, key, columns, fields = {}, choices = {}, sorts = {}, needed = {}, below = () => []}) {
    Object.assign(this, {name, path, key, columns, sorts, needed, below});
    this.parameters = {};
    this.inputs = Object.entries(fields).map(([field, label]) => el("input", {type: "search", name: field, placeholder: label, "aria-label": label,
      oninput: () => this.soon(), onkeydown: (event) => event.key === "Enter" && this.filter()}));
    for (const [field, options] of Object.entries(choices)) {
      this.inputs.push(el("select", {name: field, "aria-label": options[""], onchange: () => this.filter()},
        ...Object.entries(options).map(([value, label]) => el("option", {value}, label))));
    }
    this.previous = el("button", {onclick: () => this.turn(-1)}, t("previous"));
    this.next = el("button", {onclick: () => this.turn(1)}, t("next"));
    this.count = el("span", {class: "faint", role: "status"});
    this.tools = el("div", {class: "tools", role: "search"}, ...this.inputs, this.previous, this.next, this.count);
    this.show = (seen, parameters) => this.page(parameters);
  }

  // The cursors of the pages before this one.
  get before() {
    const known = JSON.parse(sessionStorage.getItem("before " + this.name) ?? "null");
    return known?.cursor === (this.parameters.cursor ?? "") ? known.before : [];
  }

  go(changes, before = []) {
    const {cursor: _, ...kept} = this.parameters;
    const wanted = Object.entries({...kept, ...changes}).filter(([, value]) => value !== "");
    sessionStorage.setItem("before " + this.name, JSON.stringify({cursor: changes.cursor ?? "", before}));
    location.hash = "#" + this.name + (wanted.length ? "?" + new URLSearchParams(wanted) : "");
  }

  soon() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.filter(), 300);
  }

  filter() {
    clearTimeout(this.waiting);
    this.go(Object.fromEntries(this.inputs.map((input) => [input.name, input.value.trim()])));
  }

  turn(by) {
    const before = this.before;
    if (by > 0) this.go({cursor: this.following}, [...before, this.parameters.cursor ?? ""]);
    else this.go({cursor: before.at(-1) ?? ""}, before.slice(0, -1));
  }

  sortBy(key) {
    const down = this.parameters.sort === key && this.parameters.descending !== "true";
    this.go({sort: key, descending: down ? "true" : ""});
  }

  async page(parameters) {
    this.parameters = parameters;
    for (const input of this.inputs) if (document.activeElement !== input) input.value = parameters[input.name] ?? "";
    const asked = Object.fromEntries(Object.entries({...this.needed, ...parameters, limit: LIMIT}).filter(([, value]) => value !== ""));
    const page = await api(this.path, asked);
    const rows = page[this.key];
    const pages = this.before.length;
    this.following = page.next;
    this.previous.hidden = !parameters.cursor;
    this.next.hidden = !page.next;
    const from = parameters.cursor && !pages ? null : pages * LIMIT + 1;
    const range = from && rows.length ? t("range", {from: number(from), to: number(from + rows.length - 1)}) : number(rows.length);
    this.count.textContent = page.total === undefined ? (rows.length ? range : "") : t(page.complete === false ? "of.more" : "of", {count: range, total: number(page.total)});
    const filters = this.inputs.filter((input) => parameters[input.name]).map((input) => input.selectedOptions?.[0]?.textContent ?? `${input.placeholder.split(",")[0]} '${parameters[input.name]}'`);
    const shown = rows.length || !filters.length ? table({...this.columns, ...nodeColumn(rows)}, rows, this.head(parameters))
      : el("p", {id: "nothing"}, t("list.nothing", {filters: filters.join(", ")}));
    return [this.tools, missing(page), shown, ...this.below(page)];
  }

  // What sorts by a column, and by which the rows are sorted now.
  head(parameters) {
    const first = Object.values(this.sorts)[0];
    const up = parameters.descending !== "true";
    return Object.fromEntries(Object.entries(this.sorts).map(([title, key]) => [title, {
      sorted: (parameters.sort ?? first) === key ? (up ? "ascending" : "descending") : false, sort: () => this.sortBy(key)}]));
  }
}
