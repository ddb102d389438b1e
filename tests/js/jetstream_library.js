// The two generations of nats.js as jetstream.js uses them.

async function library(generation, url) {
  return generation === "new" ? modular(url) : whole(url);
}

async function modular(url) {
  const { connect } = require("@nats-io/transport-node");
  const { jetstream, jetstreamManager } = require("@nats-io/jetstream");
  const { Kvm } = require("@nats-io/kv");
  const { Objm } = require("@nats-io/obj");
  const client = await connect({ servers: url });
  const options = { timeout: 20000 };
  const js = jetstream(client, options);
  return {
    client,
    js,
    jsm: await jetstreamManager(client, options),
    bucket: (name, settings) => new Kvm(client).create(name, settings),
    store: (name, settings) => new Objm(client).create(name, settings),
    subscribe: async (stream, name) => (await js.consumers.getPushConsumer(stream, name)).consume(),
  };
}

async function whole(url) {
  const { connect, consumerOpts } = require("nats");
  const client = await connect({ servers: url });
  const options = { timeout: 20000 };
  const js = client.jetstream(options);
  return {
    client,
    js,
    jsm: await client.jetstreamManager(options),
    bucket: (name, settings) => js.views.kv(name, settings),
    store: (name, settings) => js.views.os(name, settings),
    subscribe: (stream, name) => js.subscribe("", consumerOpts().bind(stream, name).manualAck()),
  };
}

module.exports = { library };
