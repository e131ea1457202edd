// A client of the midstream websocket in plain JavaScript: no library, no build step.
//
//   const client = new Midstream("ws://127.0.0.1:7472/v1", { token });
//   const { session } = await client.request("submit", { segments, follow: false });
//   await client.follow(session, (event) => show(event));
//
// Connections may break at any time. Requests that wait are sent again under the same number,
// and the server carries them out once; sessions are followed from behind their last event.

const PROTOCOL = "midstream.v1+json";
const FIRST_DELAY_MS = 100;
const LONGEST_DELAY_MS = 10_000;
const PING_EVERY_MS = 20_000;
const UNAUTHORIZED = 4401;
const NOT_REPEATABLE = ["submit", "interrupt", "cancel", "tool_result"];

export class RequestRefused extends Error {
  constructor({ code, message, after }) {
    super(message);
    this.code = code; // see docs/websocket.md
    this.after = after;
  }
}

export class Midstream {
  constructor(url, { token = null } = {}) {
    this.url = url;
    this.onState = () => {};
    this.server = null;
    this._token = token;
    this._name = randomName();
    this._socket = null;
    this._open = false;
    this._closed = null;
    this._delayMs = FIRST_DELAY_MS;
    this._nextId = 1;
    this._pending = new Map(); // id -> { frame, server, resolve, reject }
    this._followed = new Map(); // session -> { after, epoch, onEvent, resolve, reject, isOn }
    this._connect();
    this._pings = setInterval(() => this._ping(), PING_EVERY_MS);
  }

  // Ask the server for something. Resolves with the result, rejects with RequestRefused.
  request(type, fields = {}) {
    if (this._closed) return Promise.reject(this._closed);
    const frame = { type, id: this._nextId++, ...fields };
    return new Promise((resolve, reject) => {
      const pending = { frame, server: null, resolve, reject };
      this._pending.set(frame.id, pending);
      this._sendPending(pending);
    });
  }

  // Call `onEvent` with every event of a session behind number `after`, each once and in
  // order. Resolves with the last one, `session.ended`.
  follow(session, onEvent, { after = 0, epoch = undefined, onReset = () => {} } = {}) {
    return new Promise((resolve, reject) => {
      const followed = { after, epoch, onEvent, onReset, resolve, reject, isOn: false };
      this._followed.set(session, followed);
      if (this._open) this._subscribe(session, followed);
    });
  }

  // Leave. Sessions run on.
  close() {
    this._giveUp(new Error("the client was closed"));
    this._socket?.close(1000);
  }

  _connect() {
    this.onState("connecting");
    const socket = new WebSocket(this.url, PROTOCOL);
    this._socket = socket;
    socket.onopen = () =>
      this._send({ type: "hello", token: this._token, capabilities: ["deltas"], client: this._name });
    socket.onmessage = ({ data }) => this._hear(JSON.parse(data));
    socket.onclose = ({ code, reason }) => this._onClose(code, reason);
    socket.onerror = () => {}; // onclose follows
  }

  _onClose(code, reason) {
    this._open = false;
    for (const followed of this._followed.values()) followed.isOn = false;
    for (const [id, { frame }] of this._pending) if (frame === null) this._pending.delete(id);
    if (code === UNAUTHORIZED) this._giveUp(new Error("the token is not right"));
    if (this._closed) return;
    this.onState("waiting", reason);
    setTimeout(() => this._closed || this._connect(), this._delayMs * (0.5 + Math.random() / 2));
    this._delayMs = Math.min(LONGEST_DELAY_MS, this._delayMs * 2);
  }

  _hear(frame) {
    switch (frame.type) {
      case "welcome":
        return this._onWelcome(frame);
      case "ack":
        return this._settle(frame.id, (pending) => pending.resolve(frame.result));
      case "event":
        return this._onEvent(frame);
      case "lagged":
        return this._subscribeAgain(frame.session);
      case "error":
        if (frame.id !== undefined) {
          return this._settle(frame.id, (pending) => pending.reject(new RequestRefused(frame)));
        }
        return frame.session === undefined ? undefined : this._onSessionError(frame);
    }
  }

  _onWelcome({ server }) {
    this.server = server;
    this._open = true;
    this._delayMs = FIRST_DELAY_MS;
    this.onState("open");
    for (const pending of [...this._pending.values()]) this._sendPending(pending);
    for (const [session, followed] of this._followed) this._subscribe(session, followed);
  }

  _onEvent({ session, epoch, sequence, event }) {
    const followed = this._followed.get(session);
    if (!followed) return;
    followed.after = sequence;
    followed.epoch = epoch;
    followed.onEvent(event, { epoch, sequence });
    if (event.event === "session.ended") {
      this._followed.delete(session);
      followed.resolve(event);
    }
  }

  _onSessionError(frame) {
    const followed = this._followed.get(frame.session);
    if (!followed) return;
    followed.isOn = false;
    if (frame.code === "store") {
      setTimeout(() => this._subscribeAgain(frame.session), 1000);
      return;
    }
    this._followed.delete(frame.session);
    followed.reject(new RequestRefused(frame));
  }

  _subscribeAgain(session) {
    const followed = this._followed.get(session);
    if (!followed) return;
    followed.isOn = false;
    if (this._open) this._subscribe(session, followed);
  }

  _subscribe(session, followed) {
    if (followed.isOn) return;
    followed.isOn = true;
    const { after, epoch } = followed;
    // Belongs to this connection, so it is not among the requests that are sent again.
    const id = this._nextId++;
    this._pending.set(id, {
      frame: null,
      resolve: ({ epoch, after, reset }) => {
        if (!reset) return;
        followed.after = after;
        followed.epoch = epoch;
        followed.onReset({ epoch, after });
      },
      reject: ({ code, message, after }) => this._onSessionError({ session, code, message, after }),
    });
    this._send({ type: "subscribe", id, session, after, epoch });
  }

  _sendPending(pending) {
    if (!this._open) return;
    const isElsewhere = pending.server !== null && pending.server !== this.server;
    if (isElsewhere && NOT_REPEATABLE.includes(pending.frame.type)) {
      const lost = new Error("the server was restarted before it answered; look before you ask again");
      this._settle(pending.frame.id, (one) => one.reject(lost));
      return;
    }
    pending.server = this.server;
    this._send(pending.frame);
  }

  _settle(id, settle) {
    const pending = this._pending.get(id);
    if (!pending) return;
    this._pending.delete(id);
    settle(pending);
  }

  _ping() {
    // Browsers cannot send pings of the websocket. One that is not answered for a whole period
    // means that the connection is dead, though nobody has said so.
    if (!this._open) return;
    const socket = this._socket;
    const dead = setTimeout(() => socket.close(), PING_EVERY_MS / 2);
    this.request("ping").then(() => clearTimeout(dead), () => clearTimeout(dead));
  }

  _giveUp(error) {
    this._closed ??= error;
    clearInterval(this._pings);
    for (const { reject } of this._pending.values()) reject(error);
    for (const { reject } of this._followed.values()) reject(error);
    this._pending.clear();
    this._followed.clear();
    this.onState("closed", error.message);
  }

  _send(frame) {
    if (this._socket.readyState === WebSocket.OPEN) this._socket.send(JSON.stringify(frame));
  }
}

function randomName() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
