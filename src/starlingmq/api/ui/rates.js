// Rates and latencies over time, made of totals that are asked for again and again.

import {SAMPLES} from "./base.js";

const TOTALS = {in: "messages_received", out: "messages_sent", dropped: "dropped"};

export class Rates {
  constructor() {
    this.before = new Map(); // by node
    this.now = new Map(); // by node: a second
    this.history = {in: [], out: [], dropped: []};
    this.latency = {}; // by what is measured: means between two looks, in milliseconds, of the node that is asked
  }

  // ``overviews`` of all nodes that are looked at, the one that is asked first.
  note(overviews) {
    const sums = {in: 0, out: 0, dropped: 0};
    let known = false;
    for (const seen of overviews) {
      const before = this.before.get(seen.node);
      this.before.set(seen.node, seen);
      if (!before || before.uptime >= seen.uptime) continue;
      known = true;
      const rates = {};
      for (const [name, total] of Object.entries(TOTALS)) {
        rates[name] = Math.max(0, (seen.totals[total] - before.totals[total]) / (seen.now - before.now));
        sums[name] += rates[name];
      }
      this.now.set(seen.node, rates);
      if (seen === overviews[0]) this.noteLatency(before.latency, seen.latency);
    }
    if (known) for (const [name, value] of Object.entries(sums)) this.push(this.history[name], value);
  }

  noteLatency(before, after) {
    for (const [name, one] of Object.entries(after)) {
      const was = before[name] ?? {count: 0, mean_ms: 0};
      const count = one.count - was.count;
      const mean = count > 0 ? Math.max(0, (one.count * one.mean_ms - was.count * was.mean_ms) / count) : 0;
      this.push((this.latency[name] ??= []), mean);
    }
  }

  push(values, value) {
    values.push(value);
    if (values.length > SAMPLES) values.shift();
  }
}
