// Has the SDKs ask a server at a URL, and prints for each request the tokens that the SDK reports, as a line of JSON: of a stream that
// is cut off, those that it has reported until then.
import OpenAI from 'openai';
import Anthropic from '@anthropic-ai/sdk';

const [url] = process.argv.slice(2);
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'key', maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: 'key', maxRetries: 0 });
// The model repeats it.
const content = 'Repeat "usage":{"total_tokens":1} or }\n\ndata: {"usage":{"total_tokens":2}}\n\n and {"eval_count":3}';
const messages = [{ role: 'user', content }];

const total = (usage) => usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens + usage.output_tokens;
const last = async (stream, pick) => {
	let found;
	for await (const event of stream) found = pick(event) ?? found;
	return found;
};
const requests = {
	chat: async (options) => (await openai.chat.completions.create({ model: 'm', max_completion_tokens: 200, messages }, options)).usage.total_tokens,
	'chat stream': async (options) => {
		const stream = await openai.chat.completions.create(
			{ model: 'm', max_completion_tokens: 200, messages, stream: true, stream_options: { include_usage: true } }, options);
		return last(stream, (chunk) => chunk.usage?.total_tokens);
	},
	responses: async (options) => (await openai.responses.create({ model: 'm', max_output_tokens: 200, input: content }, options)).usage.total_tokens,
	'responses stream': async (options) => {
		const stream = openai.responses.stream({ model: 'm', max_output_tokens: 200, input: content }, options);
		return (await stream.finalResponse()).usage.total_tokens;
	},
	messages: async (options) => total((await anthropic.messages.create({ model: 'm', max_tokens: 200, messages }, options)).usage),
	'messages stream': async (options) => total((await anthropic.messages.stream({ model: 'm', max_tokens: 200, messages }, options).finalMessage()).usage),
};
for (const [name, ask] of Object.entries(requests)) {
	for (const gzip of ['0', '1']) {
		const request = `${name}${gzip === '1' ? ' gzip' : ''}`;
		const tokens = await ask({ headers: { 'X-Gzip': gzip, 'X-Request': request } });
		console.log(JSON.stringify({ request, tokens }));
	}
}
// A deposit is less than what is seen of a stream, or more than all of it. The first events come long before the end, as an SDK may lose
// what comes just before an error.
const cut = {
	'chat stream cut': async (options) => await openai.chat.completions.create(
		{ model: 'm', max_completion_tokens: 200, messages, stream: true, stream_options: { include_usage: true } }, options),
	'messages stream cut': async (options) => await anthropic.messages.create({ model: 'm', max_tokens: 200, messages, stream: true }, options),
};
for (const [name, ask] of Object.entries(cut)) {
	for (const deposit of [5, 1000]) {
		for (const gzip of ['0', '1']) {
			const request = `${name} ${deposit}${gzip === '1' ? ' gzip' : ''}`;
			const headers = { 'X-Gzip': gzip, 'X-Cut': '60', 'X-Request': request, 'X-Deposit': `${deposit}` };
			let tokens = 0;
			let error;
			try {
				for await (const event of await ask({ headers })) {
					const usage = event.usage ?? event.message?.usage;
					if (usage) tokens = usage.total_tokens ?? total(usage);
				}
			} catch (e) {
				error = `${e}`;
			}
			console.log(JSON.stringify({ request, tokens, deposit, error }));
		}
	}
}
