"use strict";
// A page with <main data-live="2"> is fetched anew every 2 seconds, and morphed into what came. What a reader has
// focused, opened, scrolled and selected stays; an element with data-keep is left alone, for what is typed into it.
// A list is not fetched again: a hidden <p data-from="/queues?q=x" data-of="x" data-new="7"> looks at the row of x there,
// and says how many more it has enqueued. A tab that is hidden asks nothing. Without a script a page stays as it is.
(() => {
  document.querySelector("header [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  const main = document.querySelector("main");
  const list = document.querySelector("[data-from]");
  if (!main.hasAttribute("data-live") && !list) return;
  const news = document.getElementById("news");
  const where = list?.dataset.from ?? location.href;
  const TURN = (Number(main.dataset.live) || 2) * 1000, PATIENCE = 10_000, FAILURES = 3;
  let mark = null, timer = null, asking = false, failures = 0, answered = new Date();

  const kept = {
    beforeNodeMorphed: (old) => !(old instanceof Element && old.matches("[data-keep]")),
    beforeAttributeUpdated: (name, node) => !(name === "open" && node.localName === "details"),
  };

  function tell(words) {
    if (news.textContent !== words) news.textContent = words; // a screen reader would say it again
  }

  function show(text) {
    const page = new DOMParser().parseFromString(text, "text/html");
    const fresh = page.querySelector("main#main");
    if (!fresh) throw new Error("a page of somebody else");
    if (!list) {
      document.title = page.title;
      Idiomorph.morph(main, fresh, { ignoreActiveValue: true, callbacks: kept });
      return;
    }
    const row = [...fresh.querySelectorAll("[data-queue]")].find((one) => one.dataset.queue === list.dataset.of);
    const more = row?.dataset.new - list.dataset.new;
    if (!(more > 0)) return;
    const link = document.createElement("a");
    link.href = location.pathname + location.search;
    link.textContent = "reload";
    list.replaceChildren(`${more.toLocaleString("en")} new, `, link);
    list.hidden = false;
  }

  async function turn() {
    if (asking || document.hidden) return;
    asking = true;
    clearTimeout(timer);
    try {
      const answer = await fetch(where, {
        headers: mark ? { "If-None-Match": mark } : {},
        cache: "no-store",
        signal: AbortSignal.timeout(PATIENCE),
      });
      if (answer.status >= 500) throw new Error(answer.status);
      if (answer.status !== 304) {
        show(await answer.text());
        mark = answer.headers.get("ETag");
      }
      failures = 0;
      answered = new Date();
      tell("");
    } catch {
      failures += 1;
      if (failures >= FAILURES) {
        const since = answered.toISOString().slice(11, 19);
        tell(`The server has not answered since ${since} UTC. This page shows what it said then.`);
      }
    } finally {
      asking = false;
      wait();
    }
  }

  function wait() {
    clearTimeout(timer);
    if (!document.hidden && (list || main.hasAttribute("data-live"))) timer = setTimeout(turn, TURN);
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : turn()));
  wait();
})();
