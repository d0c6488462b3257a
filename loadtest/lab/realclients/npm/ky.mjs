// Requests a URL with ky, as it is by default, and prints the status and the body.
import ky from 'ky';

const response = await ky(process.argv[2]);
console.log(response.status, await response.text());
