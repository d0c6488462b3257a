package redis

import (
	"errors"
	"fmt"
	"strings"
)

// Rights returns what the user of a store needs, as an ACL rule: it may run scripts, which
// may do the rest, and only to keys under the prefix.
func Rights(prefix string) string {
	return fmt.Sprintf("resetkeys resetchannels -@all ~shield:{%s:* +hello +evalsha +eval +time"+
		" +pexpire +hset +hdel +hgetall +llen +lrange +ltrim +rpush"+
		" +cluster|slots +asking +role", prefix)
}

// explain adds to an error what an operator can do about it, where it does not say so.
func (c *Client) explain(err error) error {
	o := c.options
	switch text := err.Error(); {
	case code(err) == "NOPERM", strings.Contains(text, "can't run this command"): // the same, from within a script
		return fmt.Errorf("%w; want the rights of ACL SETUSER %s %s", err, o.Username, Rights(o.Prefix))
	case code(err) == "NOAUTH":
		return errors.New("NOAUTH: the store wants a password, and it has none from us")
	case strings.Contains(text, "cluster support disabled"):
		return fmt.Errorf("%w; want one address of a server, several of a Cluster, or those of Sentinels with the name of their master", err)
	case strings.Contains(text, "No such master"):
		return fmt.Errorf("%w: %q", err, o.Sentinel)
	}
	return err
}
