"use strict";
// Asks every two seconds whether the run has moved, and exchanges the page's body if so. It can do nothing else.
const EVERY = 2000;
const live = document.getElementById("live");
const stale = document.getElementById("stale");
const pause = document.getElementById("pause");
let tag = "";
let paused = false;

function exchange(text) {
  const open = [...live.querySelectorAll("details[open]")].map((element) => element.id);
  const scrolled = [...live.querySelectorAll(".scroll")].map((element) => [element.getAttribute("aria-label"), element.scrollLeft]);
  const focused = live.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  live.innerHTML = text; // the server escaped every name in it, and no inline script can run under this page's policy
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  const regions = new Map([...live.querySelectorAll(".scroll")].map((element) => [element.getAttribute("aria-label"), element]));
  for (const [name, left] of scrolled) if (regions.has(name)) regions.get(name).scrollLeft = left;
  if (focused !== null) regions.get(focused)?.focus({ preventScroll: true });
}

async function look() {
  if (!paused) {
    try {
      const reply = await fetch("part", { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
      if (reply.status === 200) {
        tag = reply.headers.get("ETag") ?? "";
        exchange(await reply.text());
      } else if (reply.status !== 304) {
        throw new Error(String(reply.status));
      }
      stale.textContent = "";
    } catch {
      stale.textContent = "The dashboard does not answer; what is shown may be old.";
    }
  }
  setTimeout(look, EVERY);
}

pause.hidden = false;
pause.addEventListener("click", () => {
  paused = !paused;
  pause.textContent = paused ? "Go on updating" : "Pause updates";
  pause.setAttribute("aria-pressed", String(paused));
});
setTimeout(look, EVERY);
