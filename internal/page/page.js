"use strict";
(() => {
  const button = document.getElementById("pause"), live = document.getElementById("live");
  let paused = false, failing = false, timer = 0;

  // say tells who listens, and only what is new.
  const say = (text) => { if (live.textContent !== text) live.textContent = text; };

  // swap puts a newer main in the place of this one. What the reader has opened, focused and scrolled to stays.
  const swap = (text) => {
    const next = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    const old = document.querySelector("main");
    if (!next) throw new Error("the answer is no page");
    for (const d of old.querySelectorAll("details[open]")) {
      const same = d.id && next.querySelector("#" + CSS.escape(d.id));
      if (same) same.open = true;
    }
    const at = old.contains(document.activeElement) ? document.activeElement : null;
    const href = at && at.getAttribute("href");
    const place = at && [...old.querySelectorAll(at.localName)].filter((e) => e.getAttribute("href") === href).indexOf(at);
    const x = scrollX, y = scrollY;
    old.replaceWith(document.adoptNode(next));
    if (at) {
      const same = [...next.querySelectorAll(at.localName)].filter((e) => e.getAttribute("href") === href);
      const to = same[place] || same[0];
      if (to) to.focus({ preventScroll: true });
    }
    scrollTo(x, y);
    document.title = next.dataset.title;
    say(next.dataset.summary);
  };

  const refresh = async () => {
    const reading = getSelection();
    if (!paused && !document.hidden && !(reading && reading.type === "Range")) {
      try {
        const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(8000) });
        const text = await answer.text();
        if (!paused) swap(text);
        failing = false;
      } catch {
        if (!failing) say("The handler does not answer. What follows is from before " + new Date().toISOString().slice(11, 19) + " UTC.");
        failing = true;
      }
    }
    wait();
  };
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, 1000 * (Number(document.querySelector("main").dataset.refresh) || 5));
  };

  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    if (!paused) refresh();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  wait();
})();
