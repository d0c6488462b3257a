// A WebSocket that reconnects when shield says so. The server needs `websocket close`: see docs/guides/write-a-client.md.

// Connects to url. Once admitted, calls opened(socket, firstMessage).
export function connect(url, opened) {
	const socket = new WebSocket(url);
	socket.addEventListener('message', (first) => opened(socket, first), { once: true });
	socket.addEventListener('close', ({ code, reason }) => {
		const wait = /^retry-after-ms=(\d+)$/.exec(reason);
		if (code === 1013 && wait) setTimeout(connect, Number(wait[1]) + 1, url, opened);
	});
}
