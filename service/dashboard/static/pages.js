// What all pages share: questions before what cannot be undone, and parts that are read again.
document.addEventListener("click", event => {  // of the document: buttons come anew with parts that are read again
  const button = event.target.closest?.("[data-confirm]");
  if (button && !confirm(button.dataset.confirm)) event.preventDefault();
});

const again = document.querySelector("[data-refresh]");
if (again) {
  // What somebody has typed is not taken from them.
  const typed = () => [...again.querySelectorAll("input, textarea")].some(one => one.value !== one.defaultValue || one.checked !== one.defaultChecked);
  const refresh = async () => {
    if (document.hidden || typed()) return;
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
    if (!answer || !answer.ok || answer.redirected) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-refresh]");
    if (!fresh) return location.reload();  // what was waited for has ended: the page is another one now
    if (!again.contains(document.activeElement)) again.replaceChildren(...fresh.childNodes);
  };
  setInterval(refresh, 1000 * Number(again.dataset.refresh));
}
