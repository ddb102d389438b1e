// node habits.js URL WHO: what programs do with mqtt.js. Prints the steps that held, as JSON.
//
// zigbee2mqtt, nodered4, nodered5: as these programs connect (Node-RED in 3.1.1 and in 5).

const mqtt = require("mqtt");

const [url, who] = process.argv.slice(2);
const id = `${who}-${process.pid}`;
const steps = [];

function check(held, message) {
  if (!held) throw new Error(message);
}

// A client whose messages are taken one by one, in order.
class Peer {
  constructor(options) {
    this.inbox = [];
    this.takers = [];
    this.client = mqtt.connect(url, { reconnectPeriod: 0, ...options });
    this.client.on("message", (topic, payload, packet) => {
      const message = { topic, payload: payload.toString(), retain: packet.retain };
      const taker = this.takers.shift();
      if (taker) taker(message);
      else this.inbox.push(message);
    });
    this.came = new Promise((resolve, reject) => {
      this.client.once("connect", resolve);
      this.client.once("error", reject);
    });
  }

  async next() {
    return this.inbox.shift() || new Promise((resolve) => this.takers.push(resolve));
  }

  async take(payload) {
    const message = await this.next();
    check(message.payload === payload, `${JSON.stringify(message)} is not ${payload}`);
    return message;
  }

  subscribe(topic, options) {
    return this.client.subscribeAsync(topic, options);
  }

  publish(topic, payload, options) {
    return this.client.publishAsync(topic, payload, options);
  }
}

async function watching(topic, options = {}) {
  const peer = new Peer({ clientId: `${id}-watcher`, protocolVersion: 5, ...options });
  await peer.came;
  await peer.subscribe(topic, { qos: 1 });
  return peer;
}

// Presence on a retained topic: offline as the will, online at each connection, which the library makes again.
async function zigbee2mqtt() {
  const state = `${id}/bridge/state`;
  const offline = '{"state":"offline"}';
  const online = '{"state":"online"}';
  const watcher = await watching(`${id}/bridge/#`);
  const peer = new Peer({
    clientId: id,
    keepalive: 60,
    reconnectPeriod: 50,
    will: { topic: state, payload: Buffer.from(offline), qos: 1, retain: true },
  });
  const greet = () => peer.publish(state, online, { qos: 0, retain: true });
  await peer.came;
  await greet();
  await peer.subscribe(`${id}/#`);
  peer.client.on("connect", greet);
  await watcher.take(online);
  await peer.take(online);
  steps.push("online");
  await peer.publish(`${id}/lamp`, '{"state":"ON"}', { qos: 0, retain: true });
  await peer.take('{"state":"ON"}');
  peer.client.stream.destroy();
  await watcher.take(offline);
  steps.push("offline");
  await watcher.take(online);
  while ((await peer.next()).topic !== `${id}/lamp`);
  steps.push("online again");
  await peer.client.endAsync();
  await watcher.client.endAsync();
}

// Birth, close and will messages; a session that is kept, with the subscriptions that the library does not repeat.
async function nodered(version) {
  const topic = `${id}/status`;
  const watcher = await watching(topic);
  const options = {
    clientId: id,
    protocolVersion: version,
    protocolId: "MQTT",
    clean: false,
    keepalive: 60,
    resubscribe: false,
    will: { topic, payload: "will", qos: 1, retain: true },
    properties: version === 5 ? { sessionExpiryInterval: 60 } : undefined,
  };
  let peer = new Peer(options);
  check(!(await peer.came).sessionPresent, "a session before there was one");
  await peer.publish(topic, "birth", { qos: 1, retain: true });
  await watcher.take("birth");
  await peer.subscribe(`${id}/in/#`, { qos: 2, nl: true, rap: true, rh: 1 });
  await peer.publish(`${id}/in/own`, "own", { qos: 1 });
  if (version !== 5) await peer.take("own");
  steps.push("subscribed");
  peer.client.stream.destroy();
  await watcher.take("will");
  await watcher.publish(`${id}/in/a`, "waited", { qos: 2, retain: true });
  peer = new Peer(options);
  check((await peer.came).sessionPresent, "no session");
  const message = await peer.take("waited");
  check(message.retain === (version === 5), "retain as published");
  steps.push("kept session");
  await peer.publish(topic, "close", { qos: 1, retain: true });
  await watcher.take("close");
  await peer.client.endAsync();
  await watcher.publish(`${id}/in/a`, "", { qos: 1, retain: true });
  await watcher.client.endAsync();
  steps.push("close");
}

const all = {
  zigbee2mqtt,
  nodered4: () => nodered(4),
  nodered5: () => nodered(5),
};

all[who]().then(
  () => {
    console.log(JSON.stringify(steps));
    process.exit(0);
  },
  (error) => {
    console.error(error.message);
    process.exit(1);
  },
);
