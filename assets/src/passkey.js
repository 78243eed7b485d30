// Passkeys: the browser creates a passkey or signs with one, and the form sends the browser's
// response. The buttons stay hidden if the browser does not support passkeys.

const supported = Boolean(globalThis.PublicKeyCredential && navigator.credentials);

function bytes(text) {
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(binary, (c) => c.charCodeAt(0));
}

function text(buffer) {
  const binary = String.fromCharCode(...new Uint8Array(buffer));
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

// encode returns a credential as JSON, with the property names of WebAuthn. The credential's toJSON
// and the browser's conversions of the options are too new.
function encode(credential) {
  const response = {};
  for (const name of ["clientDataJSON", "attestationObject", "authenticatorData", "signature", "userHandle"]) {
    if (credential.response[name]) response[name] = text(credential.response[name]);
  }
  if (credential.response.getTransports) response.transports = credential.response.getTransports();
  return JSON.stringify({
    id: credential.id, rawId: text(credential.rawId), type: credential.type, response,
    authenticatorAttachment: credential.authenticatorAttachment ?? undefined, clientExtensionResults: {},
  });
}

// describe says why no passkey was created or used. Closing the dialog is also an error, and is
// indistinguishable from a missing passkey.
function describe(error) {
  switch (error.name) {
    case "NotAllowedError": return "No passkey was used: the request was cancelled, it timed out, or there is no matching passkey.";
    case "InvalidStateError": return "This device already has a passkey for your account.";
    default: return `The browser could not use a passkey: ${error.message}`;
  }
}

// The form that creates a passkey.
const creating = supported && document.querySelector("form[data-passkey-options]");
if (creating) {
  const fault = creating.querySelector("[data-passkey-fault]");
  creating.querySelector("[data-passkey]").hidden = false;
  creating.addEventListener("submit", async (event) => {
    event.preventDefault();
    event.stopPropagation(); // do not send the form yet
    fault.textContent = "";
    try {
      const options = JSON.parse(creating.dataset.passkeyOptions);
      options.challenge = bytes(options.challenge);
      options.user.id = bytes(options.user.id);
      for (const known of options.excludeCredentials ?? []) known.id = bytes(known.id);
      const credential = await navigator.credentials.create({ publicKey: options });
      creating.elements.credential.value = encode(credential);
      creating.submit();
    } catch (error) {
      fault.textContent = describe(error);
    }
  });
}

// The sign-in form. The button requests a passkey. Until it is pressed, the browser offers passkeys
// in the email field, if it can (conditional mediation). A challenge expires after 5 minutes, so
// the offer is renewed before that.
const signingIn = supported && document.querySelector("form[data-passkey-sign-in]");
if (signingIn) {
  const fault = signingIn.querySelector("[data-passkey-fault]");
  const button = signingIn.querySelector("[data-passkey]");
  let offer = new AbortController();

  const ask = async (mediation, signal) => {
    const answer = await fetch("/sign-in/passkey", { signal });
    if (!answer.ok) throw new Error(`the service answered ${answer.status}`);
    const options = await answer.json();
    options.challenge = bytes(options.challenge);
    const credential = await navigator.credentials.get({ publicKey: options, mediation, signal });
    const field = document.createElement("input");
    field.type = "hidden";
    field.name = "credential";
    field.value = encode(credential);
    signingIn.append(field);
    signingIn.elements.password.disabled = true; // the form does not need the password
    signingIn.action = "/sign-in/passkey";
    signingIn.submit();
  };

  const makeOffer = async () => {
    if (!await PublicKeyCredential.isConditionalMediationAvailable?.()) return;
    const mine = offer = new AbortController();
    const renewal = setTimeout(() => { mine.abort(); makeOffer(); }, 240_000);
    // Without the offer the button still works, so errors are ignored.
    await ask("conditional", mine.signal).catch(() => clearTimeout(renewal));
  };

  button.hidden = false;
  button.addEventListener("click", async () => {
    fault.textContent = "";
    offer.abort();
    button.disabled = true;
    try {
      await ask("optional");
    } catch (error) {
      fault.textContent = describe(error);
      button.disabled = false;
      makeOffer();
    }
  });
  makeOffer();
}
