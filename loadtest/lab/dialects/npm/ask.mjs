// Has an SDK ask three times: it is served, is rejected, which it shows, and is rejected and comes back.
import OpenAI from 'openai';
import Anthropic from '@anthropic-ai/sdk';

const [sdk, url] = process.argv.slice(2);
const make = {
	openai: (options) => new OpenAI({ baseURL: `${url}/v1`, ...options }),
	anthropic: (options) => new Anthropic({ baseURL: url, ...options }),
}[sdk];
const ask = async (maxRetries) => {
	const client = make({ apiKey: 'key', maxRetries });
	const messages = [{ role: 'user', content: 'hi' }];
	if (sdk === 'openai') return (await client.chat.completions.create({ model: 'm', messages })).choices[0].message.content;
	return (await client.messages.create({ model: 'm', max_tokens: 9, messages })).content[0].text;
};

await ask(5);
let rejected;
try {
	await ask(0);
} catch (e) {
	const error = sdk === 'openai' ? e.error : e.error.error;
	rejected = { status: e.status, type: error.type, code: error.code ?? '', message: e.message, after: Number(e.headers.get('retry-after-ms')) };
}
const began = performance.now();
const answer = await ask(2);
console.log(JSON.stringify({ rejected, answer, took: performance.now() - began }));
