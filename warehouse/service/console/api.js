// The server: requests with the token in a header, and the feed of events. The token lives as long as the tab.

const BASE = new URL("../", import.meta.url);
const TOKEN = "windrow.token";
const unauthorized = new EventTarget();

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (text) => (text ? sessionStorage.setItem(TOKEN, text) : sessionStorage.removeItem(TOKEN)),
  onRefused: (listener) => unauthorized.addEventListener("refused", listener),
};

async function send(path, { method = "GET", body, accept = "application/json", signal, keepalive } = {}) {
  const headers = { Accept: accept };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, BASE), {
      method, headers, signal, keepalive, credentials: "omit", cache: "no-store", redirect: "error",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "the server cannot be reached");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  const error = new ServerError(response.status, told.error ?? `the server answered ${response.status}`);
  if (response.status === 401) {
    const refused = new Event("refused");
    refused.message = error.message;
    unauthorized.dispatchEvent(refused);
  }
  throw error;
}

export async function ask(path, options) {
  return (await send(path, options)).json();
}

export async function download(path, accept, fileName) {
  const blob = await (await send(path, { accept })).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = fileName;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

export const part = encodeURIComponent;

/** Hears events until it is closed; `state` is told "live", "lost" or "refused". EventSource cannot send a token. */
export function listen(heard, state) {
  const abort = new AbortController();
  let pause = 500;
  (async () => {
    while (!abort.signal.aborted) {
      try {
        const response = await send("events", { accept: "text/event-stream", signal: abort.signal });
        state("live");
        pause = 500;
        await read(response.body, heard);
      } catch (error) {
        if (abort.signal.aborted) return;
        if (error.status === 401 || error.status === 403) return state("refused");
      }
      state("lost");
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(pause * 2, 15000);
    }
  })();
  return () => abort.abort();
}

async function read(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.split("\n").find((line) => line.startsWith("data: "));
      if (data) heard(JSON.parse(data.slice(6)));
    }
  }
}
