// Runs the client of examples/browser in Node: a story is followed while its connection breaks.
import { Midstream } from "../../examples/browser/midstream.js";

const [url, token] = process.argv.slice(2);
const client = new Midstream(url, { token });
const { session } = await client.request("submit", {
  segments: [{ kind: "text", content: "tell me" }],
  follow: false,
});
const numbers = [];
let text = "";
let breaks = 0;
const ended = await client.follow(session, (event, { sequence }) => {
  numbers.push(sequence);
  if (event.event === "text") text += event.text;
  if (numbers.length % 7 === 0) {
    breaks += 1;
    client._socket.close();
  }
});
const { sessions } = await client.request("list", { limit: 5 });
const refused = await client.request("status", { session: "ses-none" }).catch((error) => error);
client.close();
const late = await client.request("ping").catch((error) => error.message);
console.log(
  JSON.stringify({
    status: ended.status,
    text,
    numbers,
    breaks,
    listed: sessions.map(({ id }) => id).includes(session),
    refused: refused.code,
    late,
  }),
);
