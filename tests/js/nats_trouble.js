// node nats_trouble.js URL SEED: a client that meets trouble, told on standard output as JSON, one event a line.
//
// It signs in with SEED, says "ready", follows what happens to its connection, and with each reconnection publishes to
// itself. It ends when it was reconnected twice.

const { connect, nkeyAuthenticator, Empty, Events, DebugEvents } = require("nats");

const [url, seed] = process.argv.slice(2);
const tell = (what, data) => console.log(JSON.stringify([what, data ?? null]));

async function run() {
  const client = await connect({
    servers: url,
    authenticator: nkeyAuthenticator(new TextEncoder().encode(seed)),
    maxReconnectAttempts: -1,
    reconnectTimeWait: 50,
    reconnectJitter: 0,
  });
  const subscription = client.subscribe("js.trouble.*");
  await client.flush();
  let code = "";
  try {
    client.publish("js.trouble.large", new Uint8Array(client.info.max_payload + 1));
  } catch (error) {
    code = error.code;
  }
  tell("too large", code);
  client.publish("$SYS.mine", Empty);
  tell("ready", client.getServer());

  let reconnected = 0;
  (async () => {
    for await (const status of client.status()) {
      if (status.type === Events.Reconnect) {
        reconnected += 1;
        tell("reconnect", client.getServer());
        client.publish(`js.trouble.${reconnected}`);
      } else if (status.type === Events.Error) tell("error", status.data);
      else if (status.type === Events.LDM) tell("ldm");
      else if (status.type === Events.Update) tell("update", status.data.added);
      else if (status.type === DebugEvents.StaleConnection) tell("stale");
    }
  })();
  for await (const message of subscription) {
    tell("message", message.subject);
    if (message.subject === "js.trouble.2") break;
  }
  await client.drain();
}

run().then(
  () => process.exit(0),
  (error) => {
    console.error(error.stack);
    process.exit(1);
  },
);
