// Package matchers has the matcher by which a site does with less while its backend is overloaded: shield_overloaded.
//
// It measures nothing: what overloaded means is for the app shield to say, and is the same in metrics and on the page.
// It rejects nothing either: a route with other handlers, or a class of a shield, does what is to be done.
//
// This site shows a copy of its front page while the backend is overloaded, and rejects prefetches first:
//
//	@busy {
//		shield_overloaded shop
//		path /
//	}
//	handle @busy {
//		root * /srv/copies
//		file_server
//	}
//	handle {
//		shield {
//			name shop
//			concurrency adaptive
//			class sheddable {
//				match header Sec-Purpose prefetch*
//			}
//		}
//		reverse_proxy app:8080
//	}
package matchers
