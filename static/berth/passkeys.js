// Passkeys. A form with data-passkey="get" or "create" asks the browser for one with what data-options answers, puts the
// answer into its hidden field (data-field, else "credential") and is sent. It is shown only where there are passkeys.
(() => {
  "use strict";
  if (!window.PublicKeyCredential || !navigator.credentials) return;

  const bytes = (text) => {
    const plain = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
    return Uint8Array.from(plain, (char) => char.charCodeAt(0));
  };
  const text = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer)))
    .replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

  const read = (options) => {
    const found = { ...options, challenge: bytes(options.challenge) };
    if (options.user) found.user = { ...options.user, id: bytes(options.user.id) };
    for (const list of ["allowCredentials", "excludeCredentials"]) {
      if (options[list]) found[list] = options[list].map((each) => ({ ...each, id: bytes(each.id) }));
    }
    return found;
  };

  const written = (credential) => {
    const given = credential.response;
    const response = { clientDataJSON: text(given.clientDataJSON) };
    for (const part of ["attestationObject", "authenticatorData", "signature", "userHandle"]) {
      if (given[part]) response[part] = text(given[part]);
    }
    return JSON.stringify({
      id: credential.id,
      rawId: text(credential.rawId),
      type: credential.type,
      authenticatorAttachment: credential.authenticatorAttachment || undefined,
      clientExtensionResults: credential.getClientExtensionResults(),
      response,
    });
  };

  const ask = async (form) => {
    const problem = form.querySelector("[data-passkey-problem]");
    problem.hidden = true;
    const name = form.dataset.username ? document.getElementById(form.dataset.username).value.trim() : "";
    const address = new URL(form.dataset.options, location.href);
    if (name) address.searchParams.set("username", name);
    try {
      const answer = await fetch(address, { headers: { Accept: "application/json" }, credentials: "same-origin" });
      if (!answer.ok) throw new Error(String(answer.status));
      const publicKey = read((await answer.json()).publicKey);
      const credential = await navigator.credentials[form.dataset.passkey]({ publicKey });
      form.elements[form.dataset.field || "credential"].value = written(credential);
      for (const field of form.querySelectorAll("[data-follows]")) {
        field.value = document.getElementById(field.dataset.follows)?.checked ? "on" : "";
      }
      form.submit();
    } catch (error) {
      const words = { NotAllowedError: "refused", AbortError: "refused", InvalidStateError: "known" };
      problem.textContent = problem.dataset[words[error.name] || "failed"];
      problem.hidden = false;
    }
  };

  for (const form of document.querySelectorAll("form[data-passkey]")) {
    form.hidden = false;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      ask(form);
    });
  }
  for (const note of document.querySelectorAll("[data-passkey-missing]")) note.hidden = true;
})();
