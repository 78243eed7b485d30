package api

import "service/webhook"

// attemptRecord is an attempt in the API. It contains only the status of the receiver's response;
// the rest is for admins.
type attemptRecord struct {
	Number         int            `json:"number"`
	URL            *string        `json:"url"`
	StartedAt      timestamp      `json:"started_at"`
	DurationMS     int64          `json:"duration_ms"`
	Result         webhook.Result `json:"result"`
	ResponseStatus *int           `json:"response_status"`
	Error          *attemptError  `json:"error"`
}

type attemptError struct {
	Code   webhook.ErrorCode `json:"code"`
	Detail string            `json:"detail"`
}

func newAttemptRecord(at *webhook.Attempt) attemptRecord {
	return attemptRecord{
		Number: at.Number, URL: webhook.OrNull(at.URL), StartedAt: timestamp(at.StartedAt), DurationMS: at.Duration.Milliseconds(),
		Result: at.Result, ResponseStatus: webhook.OrNull(at.ResponseStatus), Error: newAttemptError(at.Error),
	}
}

func newAttemptError(code webhook.ErrorCode) *attemptError {
	if code == webhook.ErrorNone {
		return nil
	}
	return &attemptError{code, code.Detail()}
}
