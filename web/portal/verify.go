package portal

import (
	"embed"
	"encoding/base64"
	"strings"
)

// sources are programs that verify a delivery, with @…@ for its values, and one that receives
// deliveries. The first print whether the delivery is valid.
//
//go:embed verify/*.txt
var sources embed.FS

// Language is a language of the programs that verify a delivery.
type Language struct {
	Name        string
	File, Run   string // the file's name, and the command that runs it
	source      string // verify/SOURCE.txt
	short, long string // the body of the example: from base64 in place of %, or from body.json
}

// Languages are the languages of the programs, the most used first.
var Languages = []Language{
	{"Python", "verify.py", "python3 verify.py", "python", `base64.b64decode("%")`, `open("body.json", "rb").read()`},
	{"JavaScript", "verify.mjs", "node verify.mjs", "javascript", `Buffer.from("%", "base64")`, `(await import("node:fs")).readFileSync("body.json")`},
	{"Go", "verify.go", "go run verify.go", "go", `base64.StdEncoding.DecodeString("%")`, `os.ReadFile("body.json")`},
	{"PHP", "verify.php", "php verify.php", "php", `base64_decode('%')`, `file_get_contents('body.json')`},
	{"Ruby", "verify.rb", "ruby verify.rb", "ruby", `"%".unpack1("m")`, `File.binread("body.json")`},
	{"Java", "Verify.java", "java Verify.java", "java", `Base64.getDecoder().decode("%")`, `java.nio.file.Files.readAllBytes(java.nio.file.Path.of("body.json"))`},
}

// maxBody is the maximum size of a body within the programs, in bytes.
const maxBody = 4 << 10

// Example is the delivery that the programs verify: the headers of its signature, and its body.
type Example struct {
	ID, Timestamp, Signature string
	Body                     []byte
}

// Long reports whether the body is too long for the programs, which then read it from a file.
func (e *Example) Long() bool { return len(e.Body) > maxBody }

// Program returns the program in a language.
func (e *Example) Program(l *Language) string {
	body := l.long
	if !e.Long() {
		body = strings.Replace(l.short, "%", base64.StdEncoding.EncodeToString(e.Body), 1)
	}
	filled := strings.NewReplacer("@ID@", e.ID, "@TIMESTAMP@", e.Timestamp, "@SIGNATURE@", e.Signature, "@BODY@", body)
	return filled.Replace(source(l.source))
}

// Receiver returns a program that receives and verifies deliveries, in Python.
func Receiver() string { return source("receiver") }

func source(name string) string {
	source, err := sources.ReadFile("verify/" + name + ".txt")
	if err != nil {
		panic(err) // embedded files can always be read
	}
	return string(source)
}
