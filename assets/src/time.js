// Updates relative times. The formats are those of Duration and Until in web/ui/format.go.
function span(ms) {
  const s = Math.floor(Math.max(0, ms) / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

function tell() {
  if (document.hidden) return;
  const now = Date.now();
  for (const time of document.querySelectorAll("time[data-ago], time[data-until]")) {
    const at = Date.parse(time.dateTime);
    let text = span(now - at);
    if (time.dataset.until !== undefined) text = at <= now ? "now" : `in ${span(at - now)}`;
    if (time.textContent !== text) time.textContent = text;
  }
}

setInterval(tell, 5000);
document.addEventListener("visibilitychange", tell);
