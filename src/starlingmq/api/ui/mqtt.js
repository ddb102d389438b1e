// MQTT 5 over a WebSocket: the part of the protocol that one person at a page needs. Clean start, no will, no session after the connection.

export const TYPES = {CONNECT: 1, CONNACK: 2, PUBLISH: 3, PUBACK: 4, PUBREC: 5, PUBREL: 6, PUBCOMP: 7, SUBSCRIBE: 8, SUBACK: 9, UNSUBSCRIBE: 10,
  UNSUBACK: 11, PINGREQ: 12, PINGRESP: 13, DISCONNECT: 14};
const PACKET_MAX = 1 << 20; // in both directions; the broker is told
const RECEIVE_MAX = 100;
const UNANSWERED_MAX = 100;
const KEEP_ALIVE_S = 30;
const NORMAL = 0x00, PROTOCOL_ERROR = 0x82, PACKET_TOO_LARGE = 0x95;
const CLEAN_START = 0x02, HAS_PASSWORD = 0x40, HAS_USER = 0x80;
const AUTHENTICATION_DATA = 0x16, SERVER_KEEP_ALIVE = 0x13, ASSIGNED_CLIENT_ID = 0x12, REASON_STRING = 0x1f, RECEIVE_MAXIMUM = 0x21, PACKET_SIZE = 0x27;
const USER_PROPERTY = 0x26;
const BYTES = {1: [0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2a], 2: [0x13, 0x21, 0x22, 0x23], 4: [0x02, 0x11, 0x18, 0x27]};
const TEXTS = [0x03, 0x08, 0x12, 0x15, 0x1a, 0x1c, 0x1f];
const BINARIES = [0x09, AUTHENTICATION_DATA];

const encode = (text) => new TextEncoder().encode(text);
const int16 = (value) => [value >> 8, value & 255];
const int32 = (value) => [...int16(value >>> 16), ...int16(value & 0xffff)];
const text = (value) => joined(int16(encode(value).length), encode(value));

function joined(...parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

function length(value) {
  const found = [];
  do {
    found.push((value % 128) | (value > 127 ? 128 : 0));
    value = Math.floor(value / 128);
  } while (value);
  return found;
}

function packet(type, flags, ...parts) {
  const body = joined(...parts);
  return joined([(type << 4) | flags], length(body.length), body);
}

class Malformed extends Error {}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  take(count) {
    if (this.at + count > this.bytes.length) throw new Malformed();
    return this.bytes.subarray(this.at, (this.at += count));
  }

  int(size) {
    return this.take(size).reduce((sum, byte) => sum * 256 + byte, 0);
  }

  variable() {
    let value = 0;
    for (let shift = 1; shift <= 128 ** 3; shift *= 128) {
      const byte = this.int(1);
      value += (byte & 127) * shift;
      if (byte < 128) return value;
    }
    throw new Malformed();
  }

  text() {
    return new TextDecoder().decode(this.take(this.int(2)));
  }

  // By number; of those that may come more than once, the last.
  properties() {
    const found = {};
    const inside = new Reader(this.take(this.variable()));
    while (inside.at < inside.bytes.length) {
      const id = inside.variable();
      const size = Object.keys(BYTES).find((one) => BYTES[one].includes(id));
      if (size) found[id] = inside.int(Number(size));
      else if (TEXTS.includes(id)) found[id] = inside.text();
      else if (BINARIES.includes(id)) found[id] = inside.take(inside.int(2));
      else if (id === USER_PROPERTY) found[id] = [inside.text(), inside.text()];
      else if (id === 0x0b) found[id] = inside.variable();
      else throw new Malformed();
    }
    return found;
  }

  rest() {
    return this.take(this.bytes.length - this.at);
  }
}

// Packets out of the bytes of a stream, which WebSocket messages may cut anywhere.
export class Packets {
  constructor() {
    this.waiting = new Uint8Array();
  }

  * feed(bytes) {
    this.waiting = joined(this.waiting, bytes);
    while (this.waiting.length >= 2) {
      const sizes = this.waiting.subarray(1, 5).findIndex((byte) => byte < 128);
      if (sizes < 0 && this.waiting.length < 5) return;
      if (sizes < 0) throw new Malformed();
      const reader = new Reader(this.waiting);
      const first = reader.int(1);
      const size = reader.variable();
      if (size > PACKET_MAX) throw Object.assign(new Malformed(), {reason: PACKET_TOO_LARGE});
      if (this.waiting.length < reader.at + size) return;
      const body = reader.take(size);
      this.waiting = this.waiting.slice(reader.at);
      yield {type: first >> 4, flags: first & 15, body: new Reader(body)};
    }
  }
}

// ``on``: connected({client_id}), refused(reason, text), message({topic, payload, qos, retain}), answered(name, subject, reason), closed({reason, text, clean}).
// ``closed`` is called once, at the end.
export class MqttSocket {
  constructor(url, {client_id, username, password}, on) {
    this.on = on;
    this.packets = new Packets();
    this.unanswered = new Map(); // packet id to {name, subject}
    this.received = new Set(); // packet ids of QoS 2 whose PUBREL has not come
    this.last = 0;
    this.end = {reason: null, text: "", clean: false};
    this.client_id = client_id;
    this.socket = new WebSocket(url, "mqtt");
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => this.connect(client_id, username, password);
    this.socket.onmessage = ({data}) => this.feed(new Uint8Array(data));
    this.socket.onclose = () => this.over();
  }

  // Also for a connection that the browser does not open, of which Chromium does not tell the socket.
  over() {
    this.socket.onclose = null;
    clearInterval(this.pinging);
    this.on.closed(this.end);
  }

  connect(client_id, username, password) {
    const flags = CLEAN_START | (username && HAS_USER) | (password && HAS_PASSWORD);
    const properties = [RECEIVE_MAXIMUM, ...int16(RECEIVE_MAX), PACKET_SIZE, ...int32(PACKET_MAX)];
    this.write(packet(TYPES.CONNECT, 0, text("MQTT"), [5, flags], int16(KEEP_ALIVE_S), length(properties.length), properties, text(client_id),
      username ? text(username) : [], password ? text(password) : []));
  }

  publish(topic, payload, qos, retain) {
    const subject = qos ? this.next("publish", topic) : null;
    this.write(packet(TYPES.PUBLISH, (qos << 1) | Number(retain), text(topic), qos ? int16(subject) : [], [0], encode(payload)));
  }

  subscribe(filter, qos) {
    this.write(packet(TYPES.SUBSCRIBE, 2, int16(this.next("subscribe", filter)), [0], text(filter), [qos]));
  }

  unsubscribe(filter) {
    this.write(packet(TYPES.UNSUBSCRIBE, 2, int16(this.next("unsubscribe", filter)), [0], text(filter)));
  }

  disconnect(reason = NORMAL) {
    this.end.clean ||= reason === NORMAL;
    if (this.socket.readyState === WebSocket.OPEN) this.write(packet(TYPES.DISCONNECT, 0, reason ? [reason, 0] : []));
    this.socket.close();
  }

  write(bytes) {
    if (bytes.length > PACKET_MAX) throw new RangeError(String(bytes.length));
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(bytes);
  }

  next(name, subject) {
    if (this.unanswered.size >= UNANSWERED_MAX) throw new RangeError(String(this.unanswered.size));
    do this.last = (this.last % 65535) + 1; while (this.unanswered.has(this.last));
    this.unanswered.set(this.last, {name, subject});
    return this.last;
  }

  feed(bytes) {
    try {
      for (const one of this.packets.feed(bytes)) this.take(one);
    } catch (error) {
      if (!(error instanceof Malformed)) throw error;
      this.end.reason = error.reason ?? PROTOCOL_ERROR;
      this.disconnect(this.end.reason);
    }
  }

  take({type, flags, body}) {
    if (type === TYPES.CONNACK) this.connack(body);
    else if (type === TYPES.PUBLISH) this.message(flags, body);
    else if (type === TYPES.PUBREL) this.release(body.int(2));
    else if (type === TYPES.PUBREC) this.store(body);
    else if (type === TYPES.PUBACK || type === TYPES.PUBCOMP) this.answer(body.int(2), body.at < body.bytes.length ? body.int(1) : 0);
    else if (type === TYPES.SUBACK || type === TYPES.UNSUBACK) {
      const id = body.int(2);
      body.properties();
      this.answer(id, body.int(1));
    } else if (type === TYPES.DISCONNECT) {
      this.end.reason = body.bytes.length ? body.int(1) : NORMAL;
      if (body.at < body.bytes.length) this.end.text = body.properties()[REASON_STRING] ?? "";
    } else if (type !== TYPES.PINGRESP) throw new Malformed();
  }

  connack(body) {
    body.int(1);
    const reason = body.int(1);
    const given = body.properties();
    if (reason) {
      this.end = {reason, text: given[REASON_STRING] ?? "", clean: false};
      this.socket.close();
      return;
    }
    const seconds = given[SERVER_KEEP_ALIVE] ?? KEEP_ALIVE_S;
    if (seconds) this.pinging = setInterval(() => this.write(packet(TYPES.PINGREQ, 0)), seconds * 500);
    this.client_id = given[ASSIGNED_CLIENT_ID] ?? this.client_id;
    this.on.connected({client_id: this.client_id});
  }

  message(flags, body) {
    const qos = (flags >> 1) & 3;
    const topic = body.text();
    const id = qos ? body.int(2) : 0;
    body.properties();
    const known = qos === 2 && this.received.has(id);
    if (qos === 2) this.received.add(id);
    if (!known) this.on.message({topic, payload: body.rest().slice(), qos, retain: Boolean(flags & 1)});
    if (qos) this.write(packet(qos === 1 ? TYPES.PUBACK : TYPES.PUBREC, 0, int16(id)));
  }

  release(id) {
    this.received.delete(id);
    this.write(packet(TYPES.PUBCOMP, 0, int16(id)));
  }

  store(body) {
    const id = body.int(2);
    const reason = body.at < body.bytes.length ? body.int(1) : 0;
    if (reason >= 0x80) this.answer(id, reason);
    else this.write(packet(TYPES.PUBREL, 2, int16(id)));
  }

  answer(id, reason) {
    const {name, subject} = this.unanswered.get(id) ?? {};
    this.unanswered.delete(id);
    if (name) this.on.answered(name, subject, reason);
  }
}
