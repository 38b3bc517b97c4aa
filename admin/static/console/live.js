// Asks for the live part of a page again every second and swaps it in; the server has rendered and escaped it.
(() => {
  "use strict";
  const PERIOD_MS = 1000;
  const WINDOW_S = 60;

  const region = document.querySelector("[data-live]");
  if (!region) return;
  const away = document.querySelector("[data-away]");
  const samples = []; // {at, total} of the last minute
  let shown = "";

  function showRate() {
    const place = region.querySelector("[data-per-minute]");
    if (!place) return;
    const now = { at: Number(place.dataset.at), total: Number(place.dataset.total) };
    const last = samples[samples.length - 1];
    if (last && now.total < last.total) samples.length = 0; // a worker restarted and counts from zero
    samples.push(now);
    while (samples.length > 2 && now.at - samples[0].at > WINDOW_S) samples.shift();
    const span = now.at - samples[0].at;
    if (span > 0) place.textContent = `${Math.round(((now.total - samples[0].total) * 60) / span)} per minute`;
  }

  function isBeingRead() {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && region.contains(selection.anchorNode);
  }

  async function refresh() {
    if (document.hidden || isBeingRead()) return;
    const response = await fetch(region.dataset.live, { credentials: "same-origin", signal: AbortSignal.timeout(5000) });
    if (response.redirected) return window.location.reload(); // the session has ended
    if (!response.ok) throw new Error(`HTTP ${response.status}`);
    const fresh = await response.text();
    if (fresh !== shown) region.innerHTML = shown = fresh;
    showRate();
  }

  async function loop() {
    try {
      await refresh();
      if (away) away.hidden = true;
    } catch {
      if (away) away.hidden = false;
    }
    setTimeout(loop, PERIOD_MS);
  }

  showRate();
  setTimeout(loop, PERIOD_MS);
})();
