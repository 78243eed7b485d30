package web

// snippet is code that verifies a delivery in one language.
type snippet struct{ language, code string }

// Shell commands that create a signature: the first sets KEY from SECRET, the second signs its
// standard input with KEY.
const (
	decodeSecret = `KEY=$(printf %s "${SECRET#whsec_}" | base64 -d | od -An -tx1 -v | tr -d ' \n')`
	signInput    = `openssl dgst -sha256 -mac HMAC -macopt "hexkey:$KEY" -binary | base64`
)

// verifySnippets verify the signature of a delivery, as any library of Standard
// Webhooks does. SECRET is the signing secret of the subscription.
func verifySnippets() []snippet {
	return []snippet{
		{"Shell", "# prints the signature that webhook-signature must contain; SECRET is whsec_…, ID and TIMESTAMP\n" +
			"# are the headers webhook-id and webhook-timestamp, body.json is the body as received\n" +
			decodeSecret + "\n" +
			`{ printf %s "$ID.$TIMESTAMP."; cat body.json; } |` + "\n" +
			`  ` + signInput + ` | sed 's/^/v1,/'`},
		{"Node", "import { Webhook } from \"standardwebhooks\";\n\n" +
			"// body: the bytes of the request as received, before JSON parsing\n" +
			"const delivery = new Webhook(process.env.SECRET).verify(body, headers);"},
		{"Python", "from standardwebhooks import Webhook\n\n" +
			"# body: the bytes of the request as received\n" +
			"delivery = Webhook(os.environ[\"SECRET\"]).verify(body, headers)"},
		{"Go", "import standardwebhooks \"github.com/standard-webhooks/standard-webhooks/libraries/go\"\n\n" +
			"wh, err := standardwebhooks.NewWebhook(os.Getenv(\"SECRET\"))\n// …\n" +
			"err = wh.Verify(body, r.Header) // body: as received, before json.Unmarshal"},
	}
}
