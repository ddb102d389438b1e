// node jetstream.js URL new|old: what JetStream applications do, with the packages @nats-io/... or with `nats`. Prints
// what it was told, by step, as JSON. It needs a server without streams.

const assert = require("node:assert");
const { library } = require("./jetstream_library.js");

const [url, generation] = process.argv.slice(2);
const notes = [];
const note = (step, ...told) => notes.push([step, ...told]);

const SECOND = 1e9; // in nanoseconds
const shown = (message) => {
  const { deliveryCount, pending } = message.info;
  return [message.subject, message.string(), message.seq, deliveryCount, pending];
};

async function streams({ js, jsm }) {
  const config = { name: "orders", subjects: ["orders.>"], max_msgs_per_subject: 4, allow_direct: true };
  const info = await jsm.streams.add(config);
  note("created", info.config.subjects, info.config.retention, info.state.messages);
  for (let number = 0; number < 6; number++) {
    const ack = await js.publish(`orders.${number % 2}`, `${number}`, { msgID: `id-${number}` });
    note("published", ack.stream, ack.seq, ack.duplicate);
  }
  note("again", (await js.publish("orders.0", "x", { msgID: "id-0" })).duplicate);
  const expected = { expect: { lastSequence: 2 } };
  note("wrong last", await js.publish("orders.0", "x", expected).then(() => "taken", (error) => error.message));
  note("no stream", await js.publish("other", "x").then(() => "taken", () => "refused"));
  note("names", await named(jsm.streams.names()), (await jsm.streams.list().next()).map((each) => each.config.name));
  const { state } = await jsm.streams.info("orders", { subjects_filter: ">", deleted_details: true });
  note("info", state.messages, state.bytes, state.first_seq, state.last_seq, state.subjects, state.deleted);
  const one = await jsm.streams.getMessage("orders", { seq: 2 });
  note("got", one.subject, one.string(), one.seq);
  const last = await jsm.direct.getMessage("orders", { last_by_subj: "orders.1" });
  note("direct", last.subject, last.string(), last.seq);
  note("removed", await jsm.streams.deleteMessage("orders", 3), (await jsm.streams.info("orders")).state.num_deleted);
  note("purged", await jsm.streams.purge("orders", { filter: "orders.1", keep: 1 }));
  note("updated", (await jsm.streams.update("orders", { ...config, max_msgs: 50 })).config.max_msgs);
  const account = await jsm.getAccountInfo();
  note("account", account.streams, account.consumers);
}

const named = async (list) => {
  const found = [];
  for await (const each of list) found.push(each);
  return found;
};

async function pulling({ js, jsm }) {
  await jsm.streams.add({ name: "jobs", subjects: ["jobs.*"], retention: "workqueue" });
  for (let number = 0; number < 10; number++) await js.publish(`jobs.${number % 2}`, `${number}`);
  const config = { durable_name: "worker", ack_policy: "explicit", ack_wait: 30 * SECOND, max_deliver: 3 };
  await jsm.consumers.add("jobs", config);
  const worker = await js.consumers.get("jobs", "worker");
  const fetched = [];
  for await (const message of await worker.fetch({ max_messages: 4, expires: 5000 })) {
    fetched.push(shown(message));
    if (fetched.length === 1) message.nak();
    else if (fetched.length === 2) message.term("not needed");
    else assert.ok(await message.ackAck({ timeout: 20000 }));
  }
  note("fetched", fetched);
  const again = await worker.next({ expires: 5000 });
  note("again", again.subject, again.string(), again.redelivered);
  again.ack();
  const consumed = [];
  const messages = await worker.consume({ max_messages: 3 });
  for await (const message of messages) {
    consumed.push(shown(message));
    message.working();
    message.ack();
    if (consumed.length === 6) break;
  }
  note("consumed", consumed.sort());
  messages.stop();
  note("nothing", (await worker.next({ expires: 1000 })) === null);
  const info = await worker.info();
  note("info", info.num_pending, info.num_ack_pending, info.delivered.stream_seq, info.ack_floor.stream_seq);
  note("left", (await jsm.streams.info("jobs")).state.messages);
  note("consumers", await named(jsm.consumers.list("jobs")).then((all) => all.map((each) => each.name)));
  note("paused", (await jsm.consumers.pause("jobs", "worker", new Date(Date.now() + 60000))).paused);
  note("resumed", (await jsm.consumers.resume("jobs", "worker")).paused ?? false);
  note("deleted", await jsm.consumers.delete("jobs", "worker"));
  note("gone", await js.consumers.get("jobs", "worker").then(() => "there", (error) => error.message));
}

async function ordered({ js, jsm }) {
  await jsm.streams.add({ name: "log", subjects: ["log.>"] });
  for (let number = 0; number < 300; number++) await js.publish(`log.${number % 3}`, `${number}`);
  const only = ["log.0", "log.2"];
  const start = { opt_start_seq: 10, deliver_policy: "by_start_sequence" };
  const consumer = await js.consumers.get("log", { filter_subjects: only, filterSubjects: only, ...start });
  const seen = [];
  const messages = await consumer.consume();
  for await (const message of messages) {
    seen.push(message.seq);
    if (message.info.pending === 0) break;
  }
  note("in order", seen.length, seen[0], seen.at(-1), seen.every((seq, at) => at === 0 || seq > seen[at - 1]));
}

async function pushed({ js, jsm, client, subscribe }) {
  await jsm.streams.add({ name: "news", subjects: ["news.*"] });
  const config = { durable_name: "reader", deliver_subject: "to.reader", ack_policy: "explicit" };
  Object.assign(config, { idle_heartbeat: SECOND, flow_control: true });
  await jsm.consumers.add("news", config);
  for (let number = 0; number < 5; number++) await js.publish(`news.${number}`, `${number}`);
  const got = [];
  const messages = await subscribe("news", "reader");
  for await (const message of messages) {
    got.push(shown(message));
    message.ack();
    if (got.length === 5) break;
  }
  note("pushed", got);
  await client.flush();
}

async function values({ bucket }) {
  const kv = await bucket("settings", { history: 3 });
  const watched = [];
  const watch = await kv.watch();
  const watching = (async () => {
    for await (const entry of watch) {
      watched.push([entry.key, entry.operation, entry.string(), entry.revision]);
      if (entry.key === "end") break;
    }
  })();
  note("put", await kv.put("a.b", "1"), await kv.put("a.b", "2"), await kv.create("c", "3"));
  note("created", await kv.create("c", "4").then(() => "twice", () => "refused"));
  note("updated", await kv.update("c", "5", 3), await kv.update("c", "6", 3).then(() => "twice", () => "refused"));
  const entry = await kv.get("a.b");
  note("got", entry.string(), entry.revision, entry.operation, await kv.get("nothing"));
  await kv.delete("a.b");
  note("deleted", (await kv.get("a.b"))?.operation ?? null);
  const history = await kv.history({ key: "a.b" });
  note("history", (await named(history)).map((each) => [each.operation, each.string(), each.revision]));
  await kv.put("end", "7");
  await watching;
  note("watched", watched);
  note("keys", (await named(await kv.keys())).sort());
  await kv.purge("c");
  const status = await kv.status();
  note("status", status.bucket, status.history, status.values);
  await kv.purgeDeletes(0);
  note("compacted", (await kv.status()).values);
  note("destroyed", await kv.destroy());
}

async function objects({ store }) {
  const os = await store("files", { description: "of a test" });
  const events = [];
  const watch = await os.watch({ ignoreDeletes: false });
  const watching = (async () => {
    for await (const info of watch) {
      if (info === null) continue;
      events.push([info.name, info.size, info.chunks, info.deleted]);
      if (events.length === 4) break;
    }
  })();
  const data = new Uint8Array(300000).map((_, at) => at % 251);
  const info = await os.putBlob({ name: "large", description: "d", headers: undefined }, data);
  note("put", info.size, info.chunks, info.digest);
  await os.putBlob({ name: "small" }, new TextEncoder().encode("x"));
  assert.deepStrictEqual(await os.getBlob("large"), data);
  const link = await os.link("link", await os.info("small"));
  note("link", link.options?.link?.name, new TextDecoder().decode(await os.getBlob("link")));
  note("list", (await os.list()).map((each) => [each.name, each.size]).sort());
  const removed = await os.delete("large");
  note("deleted", removed.success, removed.purged, (await os.info("large")).deleted);
  await watching;
  note("watched", events);
  const status = await os.status();
  note("status", status.bucket, status.description, status.sealed);
  await os.seal();
  note("sealed", await os.putBlob({ name: "more" }, data).then(() => "put", () => "refused"));
  note("destroyed", await os.destroy());
}

async function run() {
  const parts = await library(generation, url);
  for (const step of [streams, pulling, ordered, pushed, values, objects]) {
    note(step.name);
    await step(parts);
  }
  await parts.client.drain();
}

run().then(
  () => {
    console.log(JSON.stringify(notes));
    process.exit(0);
  },
  (error) => {
    console.error(`after ${JSON.stringify(notes.slice(-3))}: ${error.stack}`);
    process.exit(1);
  },
);
