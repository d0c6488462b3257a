// Requests a URL with got, as it is by default, and prints the status and the body.
import got from 'got';

const response = await got(process.argv[2]);
console.log(response.statusCode, response.body);
