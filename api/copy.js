// Gives each block of code a button that copies it.
for (const pre of document.querySelectorAll("pre")) {
  const box = document.createElement("div");
  const button = document.createElement("button");
  box.className = "code";
  button.className = "copy";
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(pre.textContent.trimEnd());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  pre.replaceWith(box);
  box.append(pre, button);
}
