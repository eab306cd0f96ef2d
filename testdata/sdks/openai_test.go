package sdks

import (
	"context"
	"net/http"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"
)

const openAIRefusal = `{"error": {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}}`

func chat(ctx context.Context, s *server, client *http.Client, options ...option.RequestOption) error {
	options = append([]option.RequestOption{
		option.WithAPIKey("key"), option.WithBaseURL(s.URL), option.WithHTTPClient(client),
	}, options...)
	c := openai.NewClient(options...)
	_, err := c.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
		Model:    "gpt-4o",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")},
	})
	return err
}

// The SDK and the client below it make no more attempts than the larger of both.
func TestOpenAI_AttemptsAreTheLargerOfBoth(t *testing.T) {
	s := answer(t, 429, openAIRefusal, "Retry-After", "0.01")
	for name, c := range map[string]struct {
		client  *http.Client
		options []option.RequestOption
		want    int
	}{
		"alone":                  {http.DefaultClient, nil, 3},
		"above":                  {paced(t), nil, 5},
		"above, with more":       {paced(t), []option.RequestOption{option.WithMaxRetries(20)}, 5},
		"above, without retries": {paced(t), []option.RequestOption{option.WithMaxRetries(0)}, 5},
	} {
		err := chat(t.Context(), s, c.client, c.options...)
		var refused *openai.Error
		require.ErrorAs(t, err, &refused, name)
		require.Equal(t, 429, refused.StatusCode, name)
		require.Equal(t, "rate_limit_exceeded", refused.Code, name)
		require.Equal(t, c.want, s.made(), name)
	}
}
