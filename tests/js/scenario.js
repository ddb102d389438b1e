// What mqtt.js, in node or in a browser, must find a broker to do. `run` resolves with the names of the steps that
// held, in order, and rejects with what did not. Nothing here waits for time to pass: every step waits for a packet.

(function (root) {
  const LARGE = 300 * 1024;

  function check(held, message) {
    if (!held) throw new Error(message);
  }

  function equal(found, expected, what) {
    const [a, b] = [JSON.stringify(found), JSON.stringify(expected)];
    check(a === b, `${what}: ${a} is not ${b}`);
  }

  // A client whose messages are taken one by one, in order.
  class Peer {
    constructor(client) {
      this.client = client;
      this.inbox = [];
      this.takers = [];
      client.on("message", (topic, payload, packet) => {
        const message = { topic, payload, packet };
        const taker = this.takers.shift();
        if (taker) taker(message);
        else this.inbox.push(message);
      });
    }

    take() {
      const message = this.inbox.shift();
      return message ? Promise.resolve(message) : new Promise((resolve) => this.takers.push(resolve));
    }
  }

  class Scenario {
    constructor(mqtt, url, version, options) {
      this.mqtt = mqtt;
      this.url = url;
      this.version = version;
      this.options = options;
      this.prefix = `js/${version}/${Math.random().toString(16).slice(2)}`;
      this.steps = [];
    }

    get name() {
      return `js${this.prefix.split("/").pop()}`;
    }

    async connect(options = {}) {
      const client = this.mqtt.connect(this.url, {
        protocolVersion: this.version,
        protocolId: this.version === 3 ? "MQIsdp" : "MQTT",
        reconnectPeriod: 0,
        keepalive: 30,
        ...this.options,
        ...options,
      });
      // What waited for us may follow the CONNACK in the same read: listen before anything came.
      const peer = new Peer(client);
      const connack = await new Promise((resolve, reject) => {
        client.once("connect", resolve);
        client.once("error", reject);
        client.once("close", () => reject(new Error("closed before CONNACK")));
      });
      peer.sessionPresent = connack.sessionPresent;
      return peer;
    }

    async everyQualityOfService(peer) {
      const topic = `${this.prefix}/qos`;
      const granted = await peer.client.subscribeAsync(`${this.prefix}/+`, { qos: 2 });
      equal(granted[0].qos, 2, "granted QoS");
      for (const qos of [0, 1, 2]) {
        await peer.client.publishAsync(topic, `level ${qos}`, { qos });
        const message = await peer.take();
        equal([message.topic, message.payload.toString(), message.packet.qos], [topic, `level ${qos}`, qos], "message");
      }
    }

    async order(peer) {
      const sent = Array.from({ length: 200 }, (_, index) => String(index));
      await Promise.all(sent.map((text) => peer.client.publishAsync(`${this.prefix}/order`, text, { qos: 1 })));
      const found = [];
      for (const _ of sent) found.push((await peer.take()).payload.toString());
      equal(found, sent, "order");
    }

    async largePayload(peer) {
      const payload = new Uint8Array(LARGE).map((_, index) => (index * 7) % 256);
      await peer.client.publishAsync(`${this.prefix}/large`, this.mqtt.Buffer.from(payload), { qos: 1 });
      const found = (await peer.take()).payload;
      equal(found.length, LARGE, "length");
      check(payload.every((byte, index) => byte === found[index]), "a byte of the large payload changed");
    }

    async retained(peer) {
      const topic = `${this.prefix}/kept/here`;
      await peer.client.publishAsync(topic, "kept", { qos: 1, retain: true });
      await peer.client.subscribeAsync(`${this.prefix}/kept/#`, { qos: 1 });
      const message = await peer.take();
      equal([message.topic, message.payload.toString(), message.packet.retain], [topic, "kept", true], "retained message");
      await peer.client.unsubscribeAsync(`${this.prefix}/kept/#`);
      await peer.client.publishAsync(topic, "", { qos: 1, retain: true });
    }

    async properties(peer) {
      const properties = {
        contentType: "text/plain",
        payloadFormatIndicator: true,
        responseTopic: "answers/here",
        correlationData: this.mqtt.Buffer.from([0, 1, 254, 255]),
        userProperties: { colour: ["red", "green"], size: "large" },
      };
      await peer.client.publishAsync(`${this.prefix}/properties`, "request", { qos: 1, properties });
      const found = (await peer.take()).packet.properties;
      equal(found.contentType, "text/plain", "content type");
      equal(found.responseTopic, "answers/here", "response topic");
      equal(Array.from(found.correlationData), [0, 1, 254, 255], "correlation data");
      equal({ ...found.userProperties }, properties.userProperties, "user properties");
    }

    async will(peer) {
      const topic = `${this.prefix}/will`;
      const doomed = await this.connect({ will: { topic, payload: "gone", qos: 1, retain: false } });
      doomed.client.stream.destroy();
      const message = await peer.take();
      equal([message.topic, message.payload.toString()], [topic, "gone"], "will");
      doomed.client.end(true);
    }

    async keptSession() {
      const options = { clientId: this.name, clean: false };
      if (this.version === 5) options.properties = { sessionExpiryInterval: 60 };
      const first = await this.connect(options);
      equal(first.sessionPresent, false, "session present at first");
      await first.client.subscribeAsync(`${this.prefix}/away/#`, { qos: 1 });
      await first.client.endAsync();
      const other = await this.connect();
      await other.client.publishAsync(`${this.prefix}/away/news`, "while away", { qos: 1 });
      await other.client.endAsync();
      const again = await this.connect(options);
      if (this.version > 3) equal(again.sessionPresent, true, "session present again");
      equal((await again.take()).payload.toString(), "while away", "queued message");
      await again.client.endAsync();
      const last = await this.connect({ ...options, clean: true, properties: undefined });
      equal(last.sessionPresent, false, "session present after a clean start");
      await last.client.endAsync();
    }

    async run() {
      const step = async (name, done) => {
        try {
          await done;
        } catch (error) {
          throw new Error(`${name}: ${error && error.message ? error.message : error}`);
        }
        this.steps.push(name);
      };
      const peer = await this.connect();
      await step("every QoS", this.everyQualityOfService(peer));
      await step("order", this.order(peer));
      await step("large payload", this.largePayload(peer));
      await step("retained", this.retained(peer));
      if (this.version === 5) await step("properties", this.properties(peer));
      await step("will", this.will(peer));
      await step("kept session", this.keptSession());
      await step("end", peer.client.endAsync());
      return this.steps;
    }
  }

  const run = (mqtt, url, version, options = {}) => new Scenario(mqtt, url, version, options).run();
  if (typeof module === "object" && module.exports) module.exports = { run };
  else root.runScenario = run;
})(typeof self === "object" ? self : this);
