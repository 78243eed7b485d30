// Gives each block of code a button that copies it.
for (const pre of document.querySelectorAll("pre")) {
  const box = document.createElement("div");
  const button = document.createElement("button");
  box.className = "code";
  button.className = "copy";
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(pre.textContent.trimEnd());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  pre.replaceWith(box);
  box.append(pre, button);
}
