// The log of the node that is asked, as it goes on.

import {api, el, number} from "./base.js";
import {t} from "./language.js";

const LINES_MAX = 500;
const LOG_MS = 1500;

export class Log {
  constructor({node = ""} = {}) {
    this.node = node;
    this.nodes = el("select", {"aria-label": t("col.node"), hidden: "", onchange: () => { location.hash = "#log?" + new URLSearchParams({node: this.nodes.value}); }});
    this.after = null;
    this.level = "info";
    this.chosen = el("select", {"aria-label": t("log.level"), onchange: () => {
      this.level = this.chosen.value;
      this.after = null;
      this.list.replaceChildren();
      this.look();
    }}, ...["debug", "info", "warning", "error"].map((one) => el("option", {value: one, selected: one === "info" ? "" : false}, one)));
    this.state = el("span", {class: "faint", role: "status"});
    this.list = el("div", {class: "lines", id: "log"});
  }

  show() {
    this.timer = setInterval(() => document.hidden || this.look(), LOG_MS);
    this.look();
    this.name();
    return [el("div", {class: "tools"}, this.nodes, this.chosen, this.state), this.list];
  }

  // The nodes to choose from, where there are several.
  async name() {
    const told = await api("/nodes").catch(() => null);
    if (!told?.cluster) return;
    const here = told.members.find((one) => one.this)?.name;
    this.nodes.append(...told.members.map((one) => el("option", {value: one.name, selected: one.name === (this.node || here) ? "" : false}, one.name)));
    this.nodes.hidden = false;
  }

  leave() {
    clearInterval(this.timer);
  }

  async look() {
    const parameters = {level: this.level, ...(this.node && {node: this.node}), ...(this.after === null ? {} : {after: this.after})};
    try {
      const told = await api("/log", parameters);
      if (parameters.level !== this.level || parameters.after !== (this.after ?? undefined)) return;
      const began = this.after === null || told.next < this.after;
      this.after = told.next;
      this.state.textContent = t("log.of", {node: told.node});
      this.state.className = "faint";
      if (told.lost && !began) this.add(el("div", {class: "bad"}, t("log.lost", {count: number(told.lost)})));
      for (const line of told.lines)
        this.add(el("div", {class: line.level.toLowerCase()}, el("small", {}, `${line.time.slice(11, 23)} ${line.level} ${line.logger} `), line.message));
    } catch (error) {
      this.state.textContent = error instanceof TypeError ? t("no_answer") : error.message;
      this.state.className = "bad";
    }
  }

  add(line) {
    this.list.prepend(line);
    while (this.list.childElementCount > LINES_MAX) this.list.lastChild.remove();
  }
}
