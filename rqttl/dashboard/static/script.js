"use strict";
// Keeps a live page fresh: <main data-live="2"> is fetched anew every 2 seconds, and morphed into what came.
// Without a script a page stays as it is. An element with data-keep is left alone, for what is typed into it.
// A list with data-seen="N" is left alone, too: a line below the menu says how many more the fetched one has seen.
(() => {
  document.querySelector("header [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  const main = document.querySelector("main[data-live]");
  if (!main) return;
  const news = document.getElementById("news");
  const TURN = (Number(main.dataset.live) || 2) * 1000, PATIENCE = 10_000, FAILURES = 3;
  let mark = null, timer = null, asking = false, failures = 0, answered = new Date();

  const kept = {
    beforeNodeMorphed: (old) => !(old instanceof Element && old.matches("[data-keep], [data-seen]")),
    // what the reader has opened or closed stays so
    beforeAttributeUpdated: (name, node) => !(name === "open" && node.localName === "details"),
  };

  function tell(words, reload = false) {
    if (news.dataset.words === words) return; // a screen reader would say it again
    news.dataset.words = words;
    news.textContent = words;
    if (!reload) return;
    const link = document.createElement("a");
    link.href = location.pathname + location.search;
    link.textContent = "reload";
    news.append(", ", link);
  }

  function show(text) {
    const page = new DOMParser().parseFromString(text, "text/html");
    const fresh = page.querySelector("main#main");
    if (!fresh) throw new Error("another page");
    const [here, there] = [main, fresh].map((one) => Number(one.querySelector("[data-seen]")?.dataset.seen));
    document.title = page.title;
    Idiomorph.morph(main, fresh, { ignoreActiveValue: true, callbacks: kept });
    return there > here ? there - here : 0;
  }

  async function turn() {
    if (asking || document.hidden) return;
    asking = true;
    clearTimeout(timer);
    try {
      const answer = await fetch(location.href, {
        headers: mark ? { "If-None-Match": mark } : {},
        cache: "no-store",
        signal: AbortSignal.timeout(PATIENCE),
      });
      if (answer.status >= 500) throw new Error(answer.status);
      if (answer.status !== 304) {
        const more = show(await answer.text());
        mark = answer.headers.get("ETag");
        tell(more ? `${more.toLocaleString("en")} new` : "", more > 0);
      } else if (failures >= FAILURES) {
        tell("");
      }
      failures = 0;
      answered = new Date();
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
    if (!document.hidden && main.hasAttribute("data-live")) timer = setTimeout(turn, TURN);
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : turn()));
  wait();
})();
