// node nats.js URL [CA-FILE]: runs what NATS applications do and prints the steps that held, as JSON.

const assert = require("node:assert");
const { connect, headers, Empty, StringCodec } = require("nats");

const [url, caFile] = process.argv.slice(2);
const codec = StringCodec();
const steps = [];

async function run() {
  const client = await connect({ servers: url, tls: caFile ? { caFile } : undefined });
  const other = await connect({ servers: url, tls: caFile ? { caFile } : undefined });

  const few = client.subscribe("js.*.x", { max: 2 });
  await client.flush();
  const marked = headers();
  marked.append("A", "b");
  marked.append("A", "c");
  other.publish("js.1.x", codec.encode("one"), { headers: marked });
  for (const text of ["two", "three"]) other.publish("js.2.x", codec.encode(text));
  const got = [];
  for await (const message of few) got.push([message.subject, codec.decode(message.data), message.headers?.values("A")]);
  assert.deepStrictEqual(got, [["js.1.x", "one", ["b", "c"]], ["js.2.x", "two", undefined]]);
  steps.push("headers and max");

  const large = client.subscribe("js.large", { max: 1 });
  await client.flush();
  other.publish("js.large", new Uint8Array(1024 * 1024).fill(7));
  for await (const message of large) assert.ok(message.data.length === 1024 * 1024 && message.data.every((x) => x === 7));
  steps.push("large payload");

  let members = [0, 0, 0];
  members.forEach((_, place) => {
    other.subscribe("js.double", {
      queue: "workers",
      callback: (_error, message) => {
        members[place] += 1;
        message.respond(codec.encode(String(2 * Number(codec.decode(message.data)))));
      },
    });
  });
  await other.flush();
  const numbers = [...Array(300).keys()];
  const answers = await Promise.all(
    numbers.map((number) => client.request("js.double", codec.encode(String(number)), { timeout: 20000 })),
  );
  assert.deepStrictEqual(answers.map((answer) => Number(codec.decode(answer.data))), numbers.map((number) => 2 * number));
  assert.ok(members.every((count) => count > 50), String(members));
  steps.push("requests to a queue");

  for (const name of ["one", "two", "three"]) {
    other.subscribe("js.all", { callback: (_error, message) => message.respond(codec.encode(name)) });
  }
  await other.flush();
  const found = [];
  const options = { strategy: "count", maxMessages: 3, maxWait: 20000 };
  for await (const answer of await client.requestMany("js.all", Empty, options)) found.push(codec.decode(answer.data));
  assert.deepStrictEqual(found.sort(), ["one", "three", "two"]);
  steps.push("many answers");

  await assert.rejects(client.request("js.nobody", Empty, { timeout: 20000 }), { code: "503" });
  steps.push("no responders");

  assert.ok((await client.rtt()) >= 0);
  const drained = client.subscribe("js.drain");
  await client.flush();
  for (const number of numbers) other.publish("js.drain", codec.encode(String(number)));
  await other.flush();
  const drain = drained.drain();
  let count = 0;
  for await (const message of drained) assert.strictEqual(Number(codec.decode(message.data)), count++);
  await drain;
  assert.strictEqual(count, 300);
  await client.drain();
  await other.close();
  assert.ok(client.isClosed());
  steps.push("drain");
}

run().then(
  () => {
    console.log(JSON.stringify(steps));
    process.exit(0);
  },
  (error) => {
    console.error(`after ${steps}: ${error.stack}`);
    process.exit(1);
  },
);
